"""What a node needs to answer, checked while its heartbeats go on: a heartbeat alone does not show that it can work.

A file system that hangs blocks the thread that touches it, so folders are checked in a thread of their own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

from shared.core.clocks import is_off, told_clock
from shared.core.errors import StrataError
from shared.core.os_errors import refusals
from shared.runtime.background import Repeating

log = logging.getLogger(__name__)
EVERY_S = 2.0
"""Seconds between two checks."""
FOLDER_S = 5.0
"""Longest wait for a folder."""
CHARS = 300
"""Longest text of what a node lacks."""
PROBE = ".probe"
"""File that is written into a folder to see whether it can be."""


class Needs:
    """Checks a node's folders and its store again and again.

    Args:
        written: folders that the node writes to, by what they are in words.
        read: folders that it only reads; one that was never there is not needed.
        store: checks the node's store; raises a `StrataError` that says why it cannot be used.

    Attributes:
        lacks: what the node lacks, in words; empty if nothing.
    """

    def __init__(
        self,
        written: Mapping[str, Path],
        read: Mapping[str, Path | None],
        store: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.written, self.store = written, store
        self.read = {what: path for what, path in read.items() if path is not None and path.is_dir()}
        self.lacks = ""
        self._is_probing = False
        self._found: list[str] = []
        self._checking = Repeating(EVERY_S, self.look, "what this node needs is not checked")

    def start(self) -> None:
        """Begin to check."""
        self._checking.start()

    async def stop(self) -> None:
        """Stop checking; a folder that hangs is left to its thread."""
        await self._checking.stop()

    async def look(self) -> None:
        """Check once."""
        self.lacks = "; ".join([*await self._store_lacks(), *await self._folders_lack()])[:CHARS]

    async def _store_lacks(self) -> list[str]:
        try:
            if self.store is not None:
                await self.store()
        except StrataError as error:
            return [error.detail]
        return []

    async def _folders_lack(self) -> list[str]:
        if not self._is_probing:
            self._is_probing, loop, done = True, asyncio.get_running_loop(), asyncio.Event()
            threading.Thread(target=self._probe, args=(loop, done), daemon=True, name="probe").start()
            with suppress(TimeoutError):
                async with asyncio.timeout(FOLDER_S):
                    await done.wait()
                return self._found
        folders = [*self.written.values(), *self.read.values()]
        return [f"its folders do not answer within {FOLDER_S:g} s: {', '.join(map(str, folders))}"]

    def _probe(self, loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> None:
        self._found = [why for what, path in self.written.items() if (why := _unwritable(what, path))]
        self._found += [f"{what} {path} is gone" for what, path in self.read.items() if not path.is_dir()]
        self._is_probing = False
        if not loop.is_closed():
            loop.call_soon_threadsafe(done.set)


def note_clock(now_s: float, cloud_s: float | None, before: str = "") -> str:
    """Returns by how much this machine's clock differs from the cloud's; empty if by little, or if it is not known.

    It is logged unless something was said `before`.
    """
    ahead_s = None if cloud_s is None else now_s - cloud_s
    if ahead_s is None or not is_off(ahead_s):
        return ""
    note = f"{told_clock('this machine', ahead_s)}, compared with the cloud's"
    log.log(
        logging.DEBUG if before else logging.WARNING,
        "%s: times in logs and of certificates are wrong by that much; set it by NTP",
        note,
    )
    return note


def _unwritable(what: str, path: Path) -> str | None:
    """Why a folder cannot be written to; one that is not there yet is made where it is needed first."""
    probe = path / PROBE
    try:
        with refusals(probe):
            path.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(bytes(4096))
            probe.unlink()
    except StrataError as error:
        return f"{what}: {error.detail}"
    return None
