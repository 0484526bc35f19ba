"""The topology as cards that wrap: an edge each, with a mark for each of its devices; see `topology_grid.js`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nicegui import ui
from nicegui.element import Element

from cloud_server.dashboard.topology_nodes import STATES, Node, device_counts, devices_by_parent
from shared.core.formatting import counted, size
from shared.plots.palette import COLOURS

_GREY = "#7F7F7F"
# state: colour, whether it is filled, shape in a square of 16 x 16
_MARKS = {
    "training": (COLOURS[0], True, "M4 2 L14 8 L4 14 Z"),
    "used": (COLOURS[2], True, "M8 1.5 A6.5 6.5 0 1 1 7.99 1.5 Z"),
    "tested": (COLOURS[5], False, "M8 2 A6 6 0 1 1 7.99 2 Z M8 6.5 A1.5 1.5 0 1 1 7.99 6.5 Z"),
    "waiting": (_GREY, False, "M8 3.5 A4.5 4.5 0 1 1 7.99 3.5 Z"),
    "late": (COLOURS[4], True, "M3 2 H13 L8 8 L13 14 H3 L8 8 Z"),
    "refused": (COLOURS[3], True, "M8 1 L15 8 L8 15 L1 8 Z"),
    "failed": (COLOURS[1], False, "M3 3 L13 13 M13 3 L3 13"),
    "busy": (COLOURS[5], True, "M2 5 H14 V11 H2 Z"),
    "offline": (_GREY, False, "M3 3 H13 V13 H3 Z"),
    "lost": (COLOURS[1], False, "M2.5 2.5 H13.5 V13.5 H2.5 Z M2.5 13.5 L13.5 2.5"),
}
_NUMBERED = 60
"""Most devices of a card whose marks have their numbers below them."""
_STYLE = """
<style>
  .topo { display: flex; flex-direction: column; gap: .75rem; --line: rgb(128 128 128 / .4); }
  .topo svg { width: 18px; height: 18px; flex: none; overflow: visible; }
  .topo svg circle { fill: #0072B2; stroke: currentColor; stroke-width: .8; }
  .topo svg text { font: 700 9px sans-serif; fill: #000; }
  /* A refresh replaces a mark's shape: one that was pressed would take the click with it. */
  .topo button svg { pointer-events: none; }
  .topo button { color: inherit; background: none; border: 0; font: inherit; cursor: pointer; }
  .topo-tools { display: flex; flex-wrap: wrap; gap: .4rem; align-items: center; }
  .topo-tools input { flex: 1 1 16rem; max-width: 24rem; min-height: 34px; padding: 0 .6rem; color: inherit; }
  .topo-tools input { background: transparent; border: 1px solid #808080; border-radius: .4rem; font: inherit; }
  .topo-tools input::placeholder { color: inherit; opacity: .8; }
  .topo .topo-chip { display: flex; align-items: center; gap: .3rem; border: 1px solid var(--line); }
  .topo .topo-chip { border-radius: 1rem; padding: 0 .6rem; min-height: 32px; }
  .topo .topo-chip b { min-width: 1.5em; text-align: right; font-variant-numeric: tabular-nums; }
  .topo .topo-chip[aria-pressed=true] { border-color: currentColor; background: rgb(0 114 178 / .2); }
  .topo-cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 17rem), 1fr)); gap: .6rem; }
  .topo-card { border: 1px solid var(--line); border-radius: .5rem; padding: .4rem .6rem; min-width: 0; }
  .topo-card.topo-lost, .topo-card.topo-failed { border: 2px solid #D55E00; }
  .topo-card header { display: flex; align-items: center; gap: .4rem; min-width: 0; }
  .topo .topo-name { font-weight: 700; padding: .15rem .2rem; min-height: 24px; overflow: hidden; }
  .topo .topo-name { text-overflow: ellipsis; white-space: nowrap; }
  .topo button.topo-name { text-decoration: underline; text-decoration-thickness: 1px; text-underline-offset: 3px; }
  .topo-word { margin-left: auto; white-space: nowrap; }
  .topo-card p { margin: 0; font-size: .8rem; line-height: 1.4; white-space: nowrap; overflow: hidden; }
  .topo-card p { text-overflow: ellipsis; font-variant-numeric: tabular-nums; }
  .topo-marks { display: flex; flex-wrap: wrap; margin: .2rem 0 0 -3px; }
  .topo .topo-mark { width: 24px; height: 24px; padding: 3px; border-radius: .3rem; line-height: 0; }
  .topo .topo-numbered .topo-mark { height: 36px; }
  .topo-mark small { display: block; font-size: 10px; line-height: 12px; font-variant-numeric: tabular-nums; }
  .topo .topo-mark:hover { background: rgb(128 128 128 / .3); }
  .topo input:focus-visible { outline: 3px solid #E69F00; }
  .topo-tip { position: fixed; z-index: 5000; max-width: 272px; padding: .4rem .6rem; border-radius: .4rem; }
  .topo-tip { background: #222; color: #fff; font-size: .8rem; white-space: pre-line; pointer-events: none; }
  .topo-none { margin: 0; font-style: italic; }
</style>
"""


class TopologyGrid(Element, component="topology_grid.js"):
    """Shows nodes; `on_open` gets the key of one that is clicked, or chosen by keyboard."""

    def __init__(self, on_open: Callable[[str], Any]) -> None:
        super().__init__()
        ui.add_head_html(_STYLE)
        self._props["marks"] = {state: {"svg": svg_of(state), "meaning": STATES[state]} for state in STATES}
        self._props["model"] = model_of([])
        self.on("open", lambda event: on_open(event.args))

    def show(self, nodes: Sequence[Node], hidden: int = 0) -> None:
        """Show nodes; `hidden` is the number of devices that are not among them."""
        self._props["model"] = model_of(nodes, hidden)
        self.update()


def svg_of(state: str) -> str:
    """The mark of a state: each has its own shape, and colours that the colour-blind can tell apart."""
    hue, filled, path = _MARKS[state]
    style = f'fill="{hue}" stroke="currentColor" stroke-width=".8"' if filled else f'fill="none" stroke="{hue}"'
    width = "" if filled else ' stroke-width="2.4"'
    return f'<path d="{path}" {style}{width} stroke-linejoin="round"/>'


def model_of(nodes: Sequence[Node], hidden: int = 0) -> dict[str, Any]:
    """What the browser draws: the number of devices by state, and a card for each edge with its devices.

    Devices whose edge is not known, or not registered, are in a card of their own.
    """
    devices = devices_by_parent(nodes)
    edges = [node for node in nodes if node.tier == "edge"]
    cards = [_card(edge, devices.pop(edge.key, [])) for edge in edges]
    others = [node for block in devices.values() for node in block]
    if others:
        cards.append(
            {"key": "others", "name": "at no edge", "state": "", "word": "", "lines": _device_lines(others)}
            | {"numbered": len(others) <= _NUMBERED, "devices": [_device(node) for node in others]}
        )
    return {"counts": device_counts(nodes), "hidden": hidden, "cards": cards}


def _card(edge: Node, devices: Sequence[Node]) -> dict[str, Any]:
    return {
        "key": edge.key,
        "name": edge.name,
        "state": edge.state,
        "word": edge.word,
        "tip": "\n".join((edge.title, *edge.details)),
        "lines": [
            f"cloud {traffic(edge.up_bytes, edge.down_bytes)}",
            *_device_lines(devices),
            *edge.in_flight,
            *_ages(devices),
        ],
        "numbered": len(devices) <= _NUMBERED,
        "devices": [_device(node) for node in devices],
    }


def _device(node: Node) -> dict[str, Any]:
    return {
        "key": node.key,
        "name": node.name,
        "host": node.host,
        "state": node.state,
        "age": node.staleness if node.state == "used" else None,
        "flies": bool(node.in_flight),
        "tip": "\n".join((node.title, *node.details)),
    }


def _device_lines(devices: Sequence[Node]) -> list[str]:
    up_bytes, down_bytes = sum(node.up_bytes for node in devices), sum(node.down_bytes for node in devices)
    return [f"{counted(len(devices), 'device')} {traffic(up_bytes, down_bytes)}"]


def _ages(devices: Sequence[Node]) -> list[str]:
    """Where devices are asynchronous: the visits in flight, and how old the last used updates were."""
    ages = [node.staleness for node in devices if node.staleness is not None]
    n_in_flight = sum(len(node.in_flight) for node in devices)
    lines = [f"{counted(n_in_flight, 'task')} in flight"] if ages or n_in_flight else []
    return lines + ([f"updates {min(ages)} to {max(ages)} versions old"] if ages else [])


def traffic(up_bytes: int, down_bytes: int) -> str:
    """Bytes up and down, for people."""
    return f"↑ {size(up_bytes)} ↓ {size(down_bytes)}"
