"""`make cast`: draws `docs/cast.svg`, the animated picture of a terminal, from a real run.

asciinema records the command, pyte computes the screen at each moment, and an SVG shows one screen after another by a
style sheet alone: a page that embeds the picture would run no script.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

COMMAND = "strata run experiments/quickstart.yaml num_rounds=8"
OUT = Path("docs/cast.svg")
COLUMNS, ROWS = 100, 31
LIMIT_S = 300.0
"""Longest recording, in seconds."""
STEP_S, FIRST_S, PLAY_S, LAST_S = 0.1, 1.5, 14.0, 7.0
"""Seconds: shortest screen, first screen, all screens in between (sped up if longer), and last screen."""
WAIT_S = 2.0
"""Longest time, in seconds, in which nothing but a spinner moves; longer waits are cut."""

CELL_X, CELL_Y, SIZE, EDGE, TOP = 8.4, 17.0, 14, 14, 36
"""Pixels: width and height of a cell, font size, and the margins."""
FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace"
GROUND, PLAIN = "#1b1f27", "#d5dae3"
COLOURS = {
    "black": "#5c6370", "red": "#ff7b86", "green": "#8fd16f", "brown": "#e8b45a", "blue": "#6cb6ff",
    "magenta": "#e08cf0", "cyan": "#56c8d8", "white": PLAIN, "brightblack": "#8b93a3",
}  # fmt: skip
HOST = re.compile(r"https?://(?!127\.0\.0\.1[:/]|www\.w3\.org/)[^\s\"'<]*")


class Letter(NamedTuple):
    """The content of one cell; the colour is a name, six hexadecimal digits, or `default`."""

    data: str
    colour: str = "default"
    bold: bool = False


Screen = tuple[tuple[Letter, ...], ...]


def main() -> None:
    """Record, draw, and write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        recorded = Path(folder) / "run.cast"
        record(recorded)
        events = [json.loads(line) for line in recorded.read_text("utf-8").splitlines()[1:]]
    shown, faster = paced(short_waits(list(screens(events))))
    picture = drawn(shown, "waits cut short" + (f", played {faster:.1f} times as fast" if faster > 1 else ""))
    if found := private(picture):
        raise SystemExit(f"the picture would reveal details of this machine: {', '.join(found)}")
    OUT.write_text(picture, encoding="utf-8")
    print(f"{OUT}: {len(picture) / 1000:.0f} kB, {len(shown)} screens, {sum(s for _, s in shown):.0f} s")


def record(path: Path) -> None:
    """Record the command in asciinema's format, version 2."""
    script = f"printf '$ %s\\n' {shlex.quote(COMMAND)}; exec {COMMAND}"
    here = Path(sys.executable).parent
    environment = os.environ | {"TERM": "xterm-256color", "PATH": f"{here}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("COLORTERM", None)
    size = ["--cols", str(COLUMNS), "--rows", str(ROWS)]
    command = [sys.executable, "-m", "asciinema", "rec", "-q", "--overwrite", *size, "-c", script, str(path)]
    subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, timeout=LIMIT_S, check=True)  # noqa: S603 - our own command


def screens(events: Sequence[Sequence[Any]]) -> Iterator[tuple[float, Screen]]:
    """The time of each output, in seconds, with the screen after it."""
    import pyte

    terminal = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.Stream(terminal)
    for at, _, text in events:
        stream.feed(text.replace("\x1b[2m", "\x1b[90m"))  # faint, which pyte does not know, is grey
        yield (
            at,
            tuple(
                tuple(Letter(cell.data, cell.fg, cell.bold) for cell in (terminal.buffer[y][x] for x in range(COLUMNS)))
                for y in range(ROWS)
            ),
        )


def short_waits(timed: Sequence[tuple[float, Screen]]) -> list[tuple[float, Screen]]:
    """The same screens with waits cut to at most `WAIT_S`."""
    kept: list[tuple[float, Screen]] = []
    cut = waited = 0.0
    for before, (at, screen) in zip([timed[0], *timed], timed, strict=False):
        passed = at - before[0]
        waited += passed
        if waited > WAIT_S:
            over = min(waited - WAIT_S, passed)
            cut, waited = cut + over, WAIT_S
        if _still(screen) != _still(before[1]):
            waited = 0.0
        kept.append((at - cut, screen))
    return kept


def _still(screen: Screen) -> str:
    """The screen's text without spinners, which are patterns of Braille."""
    return re.sub("[\u2800-\u28ff]", " ", "".join(letter.data for row in screen for letter in row))


def paced(timed: Sequence[tuple[float, Screen]]) -> tuple[list[tuple[Screen, float]], float]:
    """The screens with the seconds that each is shown, and the factor by which they are sped up."""
    began, ended = timed[0][0], timed[-1][0]
    faster = max((ended - began) / PLAY_S, 1.0)
    newest = {round((at - began) / faster / STEP_S): screen for at, screen in timed}
    starts = sorted(newest)
    lengths = [(after - at) * STEP_S for at, after in pairwise(starts)] + [LAST_S]
    lengths[0] = FIRST_S
    shown: list[tuple[Screen, float]] = []
    for screen, several in groupby(zip((newest[at] for at in starts), lengths, strict=True), key=lambda each: each[0]):
        shown.append((screen, sum(length for _, length in several)))
    return shown, faster


def drawn(shown: Sequence[tuple[Screen, float]], title: str) -> str:
    """An SVG that shows one screen after another in a loop; only the last one for readers who prefer no motion."""
    width, height = round(COLUMNS * CELL_X) + 2 * EDGE, round(ROWS * CELL_Y) + TOP + EDGE
    rows: dict[tuple[Letter, ...], int] = {}
    strip, stops, at, total = [], [], 0.0, sum(length for _, length in shown)
    for number, (screen, length) in enumerate(shown):
        uses = [
            f'<use href="#r{rows.setdefault(row, len(rows))}" y="{y * CELL_Y:g}"/>'
            for y, row in enumerate(screen)
            if any(letter.data.strip() for letter in row)
        ]
        strip.append(f'<g transform="translate({number * width})">{"".join(uses)}</g>')
        stops.append(f"{100 * at / total:.3f}%{{transform:translateX({-number * width}px)}}")
        at += length
    kept = "".join(f'<g id="r{number}">{_row(row)}</g>' for row, number in rows.items())
    last = -(len(shown) - 1) * width
    style = (
        f"text{{font:{SIZE}px {FONT};fill:{PLAIN};white-space:pre}}.b{{font-weight:700}}"
        f"@keyframes play{{{''.join(stops)}}}.play{{animation:play {total:.2f}s steps(1,end) infinite}}"
        f"@media (prefers-reduced-motion:reduce){{.play{{animation:none;transform:translateX({last}px)}}}}"
    )
    lights = "".join(
        f'<circle cx="{x}" cy="18" r="5" fill="{fill}"/>'
        for x, fill in zip((20, 38, 56), ("#ff5f58", "#ffbd2e", "#18c132"), strict=True)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f"<title>{escape(title)}</title><style>{style}</style><defs>{kept}</defs>"
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" fill="{GROUND}" stroke="#4a5160"/>'
        f'{lights}<text x="{width / 2:g}" y="22" text-anchor="middle" style="fill:#8b93a3">{escape(title)}</text>'
        f'<svg x="{EDGE}" y="{TOP}" width="{width - 2 * EDGE}" height="{height - TOP}">'
        f'<g class="play">{"".join(strip)}</g></svg></svg>\n'
    )


def _row(row: Sequence[Letter]) -> str:
    """A row's text, placed independently of the font; two blanks or a new style begin a new element."""
    parts = []
    x = 0
    for (colour, bold), letters in groupby(row, key=lambda letter: (letter.colour, letter.bold)):
        text = "".join(letter.data for letter in letters)
        for word in re.finditer(r"\S+(?: \S+)*", text):
            wide = f' textLength="{len(word[0]) * CELL_X:g}"' if len(word[0]) > 1 else ""
            look = f' style="fill:{_hex(colour)}"' if colour != "default" else ""
            look += ' class="b"' if bold else ""
            place = f'x="{(x + word.start()) * CELL_X:g}" y="{SIZE}"'
            parts.append(f"<text {place}{wide}{look}>{escape(word[0])}</text>")
        x += len(text)
    return "".join(parts)


def _hex(colour: str) -> str:
    return f"#{colour}" if re.fullmatch(r"[0-9a-f]{6}", colour) else COLOURS.get(colour, PLAIN)


def private(picture: str) -> list[str]:
    """The parts of a picture that reveal this machine: host name, folders, user, or hosts other than loopback."""
    names = {socket.gethostname(), getpass.getuser(), str(Path.home()), str(Path.cwd())}
    words = re.sub(r"<style>.*?</style>|<[^>]*>", " ", picture, flags=re.DOTALL)
    return sorted({name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", words)}) + HOST.findall(
        picture
    )


if __name__ == "__main__":
    main()
