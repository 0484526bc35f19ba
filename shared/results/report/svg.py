"""Embeds an SVG by Matplotlib in an HTML page that has several pictures."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from markupsafe import Markup

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_LINK = re.compile(r"(?<=url\(#)[^)]+")
_BLACK = re.compile(r"((?:fill|stroke): )#000000\b")
_WHITE = re.compile(r"fill: #ffffff\b")


def inline(svg: bytes, prefix: str, title: str) -> Markup:
    """Returns the picture as an element with unique ids, without metadata, in the page's text and background colours.

    Args:
        svg: the picture as `drawn` returns it, with text as text elements.
        prefix: begins the ids; no other picture of the page has it.
        title: describes the picture for screen readers.
    """
    root = ElementTree.fromstring(svg)  # noqa: S314  drawn in this process
    for parent in list(root.iter()):
        for child in [each for each in parent if each.tag.endswith(("}metadata", "}style"))]:
            parent.remove(child)
    linked = {name for element in root.iter() for name in _links(element)}
    for element in root.iter():
        _prefix_ids(element, prefix, linked)
        _page_colours(element)
        if not element.tag.endswith(("}text", "}tspan")):
            element.text = element.text if (element.text or "").strip() else None
        element.tail = None
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {"role": "img", "aria-label": title, "fill": "currentColor"}
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704  ElementTree has escaped it


def _links(element: ElementTree.Element) -> list[str]:
    """Returns the ids that an element refers to."""
    found = [match for value in element.attrib.values() for match in _LINK.findall(value)]
    href = element.get(f"{{{_XLINK}}}href", "")
    return [*found, href[1:]] if href.startswith("#") else found


def _prefix_ids(element: ElementTree.Element, prefix: str, linked: set[str]) -> None:
    """Adds the prefix to ids that are referred to, and removes other ids."""
    own = element.attrib.pop("id", None)
    if own in linked:
        element.set("id", prefix + own)
    for name, value in element.attrib.items():
        if name == f"{{{_XLINK}}}href" and value.startswith("#"):
            element.set(name, f"#{prefix}{value[1:]}")
        elif "url(#" in value:
            element.set(name, _LINK.sub(lambda match: prefix + match.group(), value))


def _page_colours(element: ElementTree.Element) -> None:
    """Replaces black by the page's text colour and removes white backgrounds; white text on a colour stays."""
    style = element.get("style")
    if style is not None:
        style = _BLACK.sub(r"\1currentColor", style)
        element.set("style", style if element.tag.endswith("}text") else _WHITE.sub("fill: none", style))
