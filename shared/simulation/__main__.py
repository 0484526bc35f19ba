"""`python -m shared.simulation`: print the catalogue as the tables of `docs/profiles.md`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shared.simulation.profile_catalogue import DEVICES, LINKS, PROFILES


def tables() -> str:
    """Return the tables of devices and links with their sources, as Markdown."""
    parts = ("## Devices", devices(), _sources(DEVICES.items()), "## Links", links(), _sources(LINKS.items()))
    return "\n\n".join(parts)


def devices() -> str:
    """Return the table of devices, one row for each."""
    rows = [["`standard`", f"{PROFILES['standard'].compute_sps:.4g}", "", "", "", "`standard`"]]
    for name, entry in DEVICES.items():
        profile = PROFILES[name]
        own = [f"{entry.flops / 1e9:g}", f"{entry.watts:g}", f"{profile.j_per_flop * 1e9:.3g}", f"`{entry.link}`"]
        rows.append([f"`{name}`", f"{profile.compute_sps:.4g}", *own])
    return _table(("device", "`compute_sps`", "GFLOP/s", "W", "nJ a FLOP", "link"), rows)


def links() -> str:
    """Return the table of links, one row for each."""
    head = ("link", "up, Mbit/s", "down, Mbit/s", "latency, ms", "jitter, ms", "µJ a byte up", "µJ a byte down")
    rows = []
    for name, entry in LINKS.items():
        link = entry.link
        times = [f"{link.latency_s * 1e3:g}", f"{link.jitter_s * 1e3:g}"]
        energy = [f"{link.j_per_byte_up * 1e6:.3g}", f"{link.j_per_byte_down * 1e6:.3g}"]
        rows.append([f"`{name}`", f"{link.up_bps / 1e6:g}", f"{link.down_bps / 1e6:g}", *times, *energy])
    return _table(head, rows)


def _sources(entries: Iterable[tuple[str, object]]) -> str:
    return "\n".join(f"- `{name}`: {getattr(entry, 'source', '')}" for name, entry in entries)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


if __name__ == "__main__":
    print(tables())
