"""The topology as an ECharts graph; each state has its own colour and its own shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cloud_server.dashboard.charts import Theme, escaped
from cloud_server.dashboard.topology_nodes import STATES, Node, device_counts, devices_by_parent
from shared.core.formatting import scale
from shared.plots.palette import COLOURS

_GREY = "#7F7F7F"
# state: colour, shape, whether it is filled
_MARKS = {
    "training": (COLOURS[0], "circle", True),
    "used": (COLOURS[2], "circle", True),
    "waiting": (_GREY, "circle", False),
    "late": (COLOURS[4], "triangle", True),
    "refused": (COLOURS[3], "diamond", True),
    "failed": (COLOURS[1], "rect", True),
    "offline": (_GREY, "rect", False),
    "lost": (COLOURS[1], "pin", False),
}
_SIZES = {"cloud": 46, "edge": 32}
_SYMBOLS = {"cloud": "roundRect", "edge": "roundRect"}
_STEP = 10.0
"""Distance between neighbouring devices, in the graph's coordinates."""


def graph(nodes: Sequence[Node], theme: Theme) -> dict[str, Any]:
    """The options of the graph. Positions depend only on which nodes exist, so nodes do not move when states change."""
    positions, names = _positions(nodes), list(STATES)
    n_devices = sum(node.tier == "device" for node in nodes)
    size = 22 if n_devices <= 20 else 16 if n_devices <= 60 else 12
    max_bytes = max((node.up_bytes + node.down_bytes for node in nodes), default=0)
    present = device_counts(nodes)
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
        "categories": [{"name": name, **_mark(name, theme, "device")} for name in names],
        "data": [_node(node, positions[node.key], size, theme, n_devices) for node in nodes],
        "links": [_link(node, max_bytes, theme) for node in nodes if node.parent in positions],
        "emphasis": {"focus": "adjacency"},
    }
    icons = [
        {"name": name, "icon": _MARKS[name][1], "itemStyle": _mark(name, theme, "device")["itemStyle"]}
        for name in present
    ]
    legend = {
        "top": 0,
        "textStyle": {"color": theme.text},
        "data": icons,
        "selectedMode": False,
        "itemWidth": 14,
        "itemHeight": 14,
    }
    return {
        "animation": False,
        "textStyle": {"color": theme.text, "fontFamily": "sans-serif"},
        "aria": {"enabled": True},
        "tooltip": {"confine": True},
        "legend": legend,
        "series": [drawn],
    }


def _mark(state: str, theme: Theme, tier: str) -> dict[str, Any]:
    hue, symbol, filled = _MARKS[state]
    style = {"color": hue if filled else theme.background, "borderColor": hue, "borderWidth": 2}
    return {"symbol": _SYMBOLS.get(tier, symbol), "itemStyle": style}


def _node(node: Node, position: tuple[float, float], size: int, theme: Theme, n_devices: int) -> dict[str, Any]:
    text = "<br>".join(map(escaped, (f"{node.name}: {node.state}", *node.details)))
    shown = node.tier != "device" or n_devices <= 60
    return {
        "id": node.key,
        "name": node.name,
        "x": position[0],
        "y": position[1],
        "category": list(STATES).index(node.state),
        "symbolSize": _SIZES.get(node.tier, size),
        **_mark(node.state, theme, node.tier),
        "tooltip": {"formatter": text},
        "label": {
            "show": shown,
            "formatter": _label(node),
            "position": "bottom" if node.tier == "device" else "right",
            "color": theme.text,
            "fontSize": 10 if node.tier == "device" else 12,
            "lineHeight": 15,
        },
    }


def _link(node: Node, max_bytes: int, theme: Theme) -> dict[str, Any]:
    """The link to the parent; its width grows with the bytes sent over it."""
    n_bytes = node.up_bytes + node.down_bytes
    width = 1 + 4 * math.sqrt(n_bytes / max_bytes) if max_bytes and n_bytes else 1
    hue, _, _ = _MARKS[node.state]
    busy = node.state in ("training", "late", "refused", "failed")
    text = f"{escaped(node.name)}: {_bytes(node.up_bytes)} up, {_bytes(node.down_bytes)} down"
    style = {"width": width, "color": hue if busy else theme.lines, "opacity": 0.9}
    style |= {"type": "dashed" if node.state in ("lost", "offline") else "solid"}
    return {"source": node.parent, "target": node.key, "lineStyle": style, "tooltip": {"formatter": text}}


def _label(node: Node) -> str:
    """The name, for an edge with the bytes on its link to the cloud. Braces would be placeholders in a label."""
    name = node.name.replace("{", "(").replace("}", ")")
    if node.tier != "edge" or not node.up_bytes + node.down_bytes:
        return name
    return f"{name}\n↑ {_bytes(node.up_bytes)}  ↓ {_bytes(node.down_bytes)}"


def _bytes(n_bytes: int) -> str:
    divisor, unit = scale("bytes", n_bytes)
    return f"{n_bytes / divisor:.3g} {unit}"


def _positions(nodes: Sequence[Node]) -> Mapping[str, tuple[float, float]]:
    """Positions by key: the cloud on top, edges in a row with their devices below, other devices at the right."""
    devices, edges = devices_by_parent(nodes), [node.key for node in nodes if node.tier == "edge"]
    positions: dict[str, tuple[float, float]] = {}
    left = 0.0
    for key in [*edges, *(parent for parent in devices if parent not in edges)]:
        block = devices.get(key, [])
        columns = max(2, math.ceil(math.sqrt(len(block) * 1.4)))
        for index, node in enumerate(block):
            positions[node.key] = (left + index % columns * _STEP, (4 + index // columns) * _STEP)
        if key is not None and key in edges:
            positions[key] = (left + (columns - 1) * _STEP / 2, 2 * _STEP)
        left += (columns + 0.5) * _STEP
    positions["cloud"] = (max(left - 1.5 * _STEP, 0) / 2, 0.0)
    return positions
