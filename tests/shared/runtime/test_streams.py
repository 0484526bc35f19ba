"""Standard streams that are closed, full, without a reader, or of few letters."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.runtime.streams import Unbroken

ROOT = Path(__file__).resolve().parents[3]


class Failing(io.StringIO):
    """A stream that takes no text, as the system says."""

    def __init__(self, number: int, terminal: bool = False) -> None:
        super().__init__()
        self.number, self.terminal = number, terminal

    def write(self, text: str) -> int:
        raise OSError(self.number, os.strerror(self.number))

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("stream", "failed"),
    [
        (Failing(errno.EPIPE), False),
        (Failing(errno.EIO, terminal=True), False),  # the terminal was closed
        *((Failing(number), True) for number in (errno.EIO, errno.ENOSPC)),
    ],
)
def test_a_stream_that_fails_is_silent_and_says_so_unless_its_reader_has_gone(stream: Failing, failed: bool) -> None:
    found = Unbroken(stream)
    for _ in range(2):
        assert found.write("a line\n") == 7
        found.flush()
    assert found.broken
    assert (found.failure is not None) is failed


def test_a_stream_that_is_closed_or_missing_takes_everything_in_silence_and_letters_it_lacks_are_replaced() -> None:
    closed = io.StringIO()
    for found in (Unbroken(closed), Unbroken(None)):
        closed.close()
        found.write("a line\n")
        found.flush()
        assert (found.isatty(), found.failure) == (False, None)
    for encoding, written in (("ascii", b"caf? ?\n"), ("latin-1", b"caf\xe9 ?\n")):
        raw = io.BytesIO()
        found = Unbroken(io.TextIOWrapper(raw, encoding=encoding))
        found.write("café ━\n")
        found.flush()
        assert raw.getvalue() == written


CLOSED = """
import os, sys
for number in range(3):
    os.close(number)
sys.stdin = sys.stdout = sys.stderr = None
from strata.main import app_entry
try:
    app_entry(["ls"])
except SystemExit as ended:
    found = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
    os.write(found, f"{ended.code} {found > 2}".encode())
"""


@pytest.mark.integration
def test_a_command_without_standard_streams_gives_their_numbers_to_nothing_else(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", CLOSED, str(tmp_path / "end")], cwd=tmp_path, env=env, check=True)
    assert (tmp_path / "end").read_text() == "0 True"


@pytest.mark.whole
@pytest.mark.integration
@pytest.mark.parametrize(("target", "status"), [("pipe", 0), ("/dev/full", 1)])
def test_a_command_without_a_reader_is_quiet_and_a_full_disk_is_named(tmp_path: Path, target: str, status: int) -> None:
    options: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    if target == "pipe":
        reader, writer = os.pipe()
        os.close(reader)
    else:
        writer = os.open(target, os.O_WRONLY)
    command = [sys.executable, "-m", "strata", "ls", "--format", "json"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, **options)
    os.close(writer)
    assert done.returncode == status
    assert done.stderr.startswith("error: stdout: No space left on device") if status else done.stderr == ""
