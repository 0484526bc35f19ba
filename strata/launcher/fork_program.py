"""The program of a fork server: it imports the tiers once, then forks a process for each request of its launcher.

`python -m strata.launcher.fork_program MODULE...` imports the modules and serves the launcher at the other end of the
connection FORK_SERVER_FD (see `fork_server`). Importing torch and the tiers takes seconds of CPU time and hundreds of
megabytes; a forked process starts at once and shares those pages. `multiprocessing`'s own fork server would import the
launcher's main module into each process, and gives them neither an environment nor descriptors of their own.

A fork copies all of this process, because it has one thread and has not initialised CUDA, which it checks. The server
ends when the launcher ends, and ends its processes; if the server is killed, the kernel ends them.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import runpy
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from pathlib import Path
from types import FrameType
from typing import Any

from strata.launcher.parent_death import end_with_parent, name_process


def main(modules: list[str]) -> None:
    """Import the modules and serve the launcher. In a forked process: run the requested module."""
    launcher = Connection(int(os.environ["FORK_SERVER_FD"]))
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    check_forkable()
    gc.collect()
    gc.freeze()  # the collector of a forked process leaves these objects alone, so that their pages stay shared
    forked = ForkLoop(launcher).serve()
    if forked is not None:
        become(*forked)


def check_forkable() -> None:
    """Check that a fork would copy all of this process.

    Raises:
        SystemExit: another thread runs, or CUDA is initialised; neither survives a fork.
    """
    tasks = Path("/proc/self/task")
    if tasks.is_dir() and (threads := len(list(tasks.iterdir()))) != 1:
        sys.exit(f"the fork server has {threads} threads after its imports, and a fork copies only one")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        sys.exit("the fork server has initialised CUDA, which does not survive a fork")


class ForkLoop:
    """Forks processes and reports their ends, until the launcher ends.

    Args:
        launcher: requests come from it: a JSON object, followed by the descriptors that the object names.
    """

    def __init__(self, launcher: Connection) -> None:
        self._launcher = launcher
        self._children: set[int] = set()
        self._woken, self._wake = os.pipe()
        for descriptor in (self._woken, self._wake):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, _do_nothing)  # with a handler, the signal writes to the pipe
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def serve(self) -> tuple[dict[str, Any], dict[str, int]] | None:
        """Serve until the launcher ends; returns None then, and in a forked process its request and descriptors."""
        while True:
            ready = wait([self._launcher, self._woken])
            if self._woken in ready:
                with suppress(BlockingIOError):
                    os.read(self._woken, 512)
                self._report_ended()
            if self._launcher in ready:
                try:
                    request = json.loads(self._launcher.recv_bytes())
                    descriptors = {name: recv_handle(self._launcher) for name in request["inherited"]}
                except (EOFError, OSError):
                    self._kill_all()
                    return None
                if self._fork(descriptors):
                    return request, descriptors

    def _fork(self, descriptors: dict[str, int]) -> bool:
        """Fork, and tell the launcher the number of the process; returns True in the forked process.

        The launcher hears of the process only when it has a session of its own: a signal to its group would be lost.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        parent, (reader, writer) = os.getpid(), os.pipe()
        try:
            pid: int | None = os.fork()
        except OSError as error:
            pid = None
            self._tell(refused=error.errno)
        if pid == 0:
            self._leave()
            os.setsid()
            end_with_parent(parent)
            os.close(reader)
            os.close(writer)
            return True
        os.close(writer)
        if pid is not None:
            os.read(reader, 1)  # until the process has closed its copy of `writer`, or has died
            self._children.add(pid)
            self._tell(started=pid)
        for descriptor in (reader, *descriptors.values()):
            os.close(descriptor)
        return False

    def _leave(self) -> None:
        """Undo in a forked process what belongs to the loop: its signal handler, pipe and connection."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._woken)
        os.close(self._wake)
        self._launcher.close()

    def _report_ended(self) -> None:
        for pid in sorted(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._children.discard(pid)
                self._tell(ended=pid, status=os.waitstatus_to_exitcode(status))

    def _kill_all(self) -> None:
        for pid in self._children:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _tell(self, **message: Any) -> None:
        with suppress(OSError):  # the launcher has ended, and the next read will say so
            self._launcher.send_bytes(json.dumps(message).encode())


def become(request: dict[str, Any], descriptors: dict[str, int]) -> None:
    """Turn a forked process into the requested one, and run its module as `__main__`."""
    name_process(request["name"])
    os.chdir(request["folder"])
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.clear()
    os.environ.update(request["env"])
    os.environ.update({name: str(descriptor) for name, descriptor in descriptors.items()})
    _reseed()
    gc.enable()
    sys.argv = [request["module"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def _reseed() -> None:
    """Give a forked process random states of its own. Results never depend on them: they draw from keyed streams."""
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.seed()


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    pass


if __name__ == "__main__":
    main(sys.argv[1:])
