"""The topology as a graph of ECharts: each state has a colour and a shape of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cloud_server.dashboard.charts import Look, escaped
from cloud_server.dashboard.topology_view import STATES, Node, below, counted
from shared.core.formatting import scale
from shared.plots.palette import COLOURS

_GREY = "#7F7F7F"
# Colour, shape, and whether it is filled.
_LOOKS = {
    "trains": (COLOURS[0], "circle", True),
    "used": (COLOURS[2], "circle", True),
    "waits": (_GREY, "circle", False),
    "late": (COLOURS[4], "triangle", True),
    "refused": (COLOURS[3], "diamond", True),
    "failed": (COLOURS[1], "rect", True),
    "offline": (_GREY, "rect", False),
    "lost": (COLOURS[1], "pin", False),
}
_SIZES = {"cloud": 46, "edge": 32}
_SYMBOLS = {"cloud": "roundRect", "edge": "roundRect"}
_STEP = 10.0
"""Between neighbours, in the graph's own measure."""


def graph(nodes: Sequence[Node], look: Look) -> dict[str, Any]:
    """The options of the graph; places depend on who is there alone, so that nothing moves while it is watched."""
    places, names = _places(nodes), list(STATES)
    n_devices = sum(node.tier == "device" for node in nodes)
    size = 22 if n_devices <= 20 else 16 if n_devices <= 60 else 12
    most = max((node.up_bytes + node.down_bytes for node in nodes), default=0)
    present = counted(nodes)
    drawn = {
        "type": "graph",
        "layout": "none",
        "roam": True,
        "preserveAspect": "contain",
        "scaleLimit": {"min": 0.4, "max": 6},
        "left": 20,
        "right": 20,
        "top": 60,
        "bottom": 44,
        "categories": [{"name": name, **_mark(name, look, "device")} for name in names],
        "data": [_node(node, places[node.key], size, look, n_devices) for node in nodes],
        "links": [_link(node, most, look) for node in nodes if node.above in places],
        "emphasis": {"focus": "adjacency"},
    }
    icons = [
        {"name": name, "icon": _LOOKS[name][1], "itemStyle": _mark(name, look, "device")["itemStyle"]}
        for name in present
    ]
    legend = {
        "top": 0,
        "textStyle": {"color": look.ink},
        "data": icons,
        "selectedMode": False,
        "itemWidth": 14,
        "itemHeight": 14,
    }
    return {
        "animation": False,
        "textStyle": {"color": look.ink, "fontFamily": "sans-serif"},
        "aria": {"enabled": True},
        "tooltip": {"confine": True},
        "legend": legend,
        "series": [drawn],
    }


def _mark(state: str, look: Look, tier: str) -> dict[str, Any]:
    hue, symbol, filled = _LOOKS[state]
    style = {"color": hue if filled else look.paper, "borderColor": hue, "borderWidth": 2}
    return {"symbol": _SYMBOLS.get(tier, symbol), "itemStyle": style}


def _node(node: Node, place: tuple[float, float], size: int, look: Look, n_devices: int) -> dict[str, Any]:
    words = "<br>".join(map(escaped, (f"{node.name}: {node.state}", *node.words)))
    shown = node.tier != "device" or n_devices <= 60
    inside = node.tier == "device" and node.name.isdigit()
    return {
        "id": node.key,
        "name": node.name,
        "x": place[0],
        "y": place[1],
        "category": list(STATES).index(node.state),
        "symbolSize": _SIZES.get(node.tier, size),
        **_mark(node.state, look, node.tier),
        "tooltip": {"formatter": words},
        "label": {
            "show": shown,
            "formatter": _label(node),
            "position": "bottom" if inside else "right" if node.tier != "device" else "bottom",
            "color": look.ink,
            "fontSize": 10 if node.tier == "device" else 12,
            "lineHeight": 15,
        },
    }


def _link(node: Node, most: int, look: Look) -> dict[str, Any]:
    """The wider the more bytes; between cloud and edges they are written beside it."""
    n_bytes = node.up_bytes + node.down_bytes
    width = 1 + 4 * math.sqrt(n_bytes / most) if most and n_bytes else 1
    hue, _, _ = _LOOKS[node.state]
    busy = node.state in ("trains", "late", "refused", "failed")
    words = f"{escaped(node.name)}: {_bytes(node.up_bytes)} up, {_bytes(node.down_bytes)} down"
    style = {"width": width, "color": hue if busy else look.faint, "opacity": 0.9}
    style |= {"type": "dashed" if node.state in ("lost", "offline") else "solid"}
    tip = {"formatter": words}
    return {"source": node.above, "target": node.key, "lineStyle": style, "tooltip": tip}


def _label(node: Node) -> str:
    """Its name; of an edge also what its link to the cloud moved. Braces are placeholders there."""
    name = node.name.replace("{", "(").replace("}", ")")
    if node.tier != "edge" or not node.up_bytes + node.down_bytes:
        return name
    return f"{name}\n↑ {_bytes(node.up_bytes)}  ↓ {_bytes(node.down_bytes)}"


def _bytes(n_bytes: int) -> str:
    worth, name = scale("bytes", n_bytes)
    return f"{n_bytes / worth:.3g} {name}"


def _places(nodes: Sequence[Node]) -> Mapping[str, tuple[float, float]]:
    """The cloud above, edges side by side, each above a block of its devices; who has no edge stands apart."""
    devices, edges = below(nodes), [node.key for node in nodes if node.tier == "edge"]
    found: dict[str, tuple[float, float]] = {}
    left = 0.0
    for key in [*edges, *(above for above in devices if above not in edges)]:
        mine = devices.get(key, [])
        columns = max(2, math.ceil(math.sqrt(len(mine) * 1.4)))
        for at, node in enumerate(mine):
            found[node.key] = (left + at % columns * _STEP, (4 + at // columns) * _STEP)
        if key is not None and key in edges:
            found[key] = (left + (columns - 1) * _STEP / 2, 2 * _STEP)
        left += (columns + 0.5) * _STEP
    found["cloud"] = (max(left - 1.5 * _STEP, 0) / 2, 0.0)
    return found
