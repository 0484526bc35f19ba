"""A simulator of others in processes of its own virtual environment, one round at a time, so that it can take turns.

The simulators are optional: `make bench-tools` installs each into `.bench-tools/<name>`, since they pin other versions
of packages than the product does. Every process gets one end of a pipe: it answers `b"round"` with the work that the
round did, and ends when the pipe is closed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

from benchmarks.loops import Job
from benchmarks.memory import descendants

Name = Literal["flower", "pfl"]
ROOT = Path(__file__).resolve().parents[2]
SIMULATORS: Mapping[Name, str] = {"flower": "Flower simulation, 2 actors", "pfl": "pfl, 2 processes"}
"""By name: the words of its lines."""
N_PROCESSES: Mapping[Name, int] = {"flower": 1, "pfl": 2}
"""Processes that are started here; Flower's starts those of Ray itself."""
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
READY_S, ROUND_S, END_S = 180.0, 600.0, 30.0


def python_of(name: Name) -> Path:
    """The interpreter of a simulator's virtual environment."""
    return ROOT / ".bench-tools" / name / "bin" / "python"


def installed(name: Name) -> bool:
    """Whether `make bench-tools` has installed the simulator."""
    return python_of(name).exists()


class Simulator:
    """The processes of a simulator, with their data loaded, before their first round."""

    def __init__(self, name: Name, job: Job, pipes: Sequence[Connection], processes: Sequence[subprocess.Popen[bytes]]):
        self._name, self._job, self._pipes, self._processes = name, job, pipes, processes

    def round(self) -> float:
        """Run one round; returns the seconds.

        Raises:
            RuntimeError: the round did other work than the job says, or a process ended or did not answer.
        """
        began = time.perf_counter()
        for pipe in self._pipes:
            pipe.send_bytes(b"round")
        done = [json.loads(self.receive(pipe, ROUND_S)) for pipe in self._pipes]
        seconds = time.perf_counter() - began
        total = {what: sum(each[what] for each in done) for what in done[0]}
        if total != asdict(self._job.work):
            raise RuntimeError(f"a round of {self._name} did {total}, not {self._job.work}")
        return seconds

    def receive(self, pipe: Connection, limit_s: float) -> bytes:
        """The next message of a process."""
        try:
            if pipe.poll(limit_s):
                return pipe.recv_bytes()
        except (EOFError, OSError):
            raise RuntimeError(f"{self._name} ended: {[process.poll() for process in self._processes]}") from None
        raise RuntimeError(f"{self._name} did not answer within {limit_s:g} s")

    def pids(self) -> list[int]:
        """Ids of its processes and of those that they have started."""
        return [pid for process in self._processes for pid in (process.pid, *descendants(process.pid))]


@contextmanager
def simulator(name: Name, folder: Path, job: Job) -> Iterator[Simulator]:
    """A simulator that is ready for its first round.

    Args:
        name: one that is installed.
        folder: contains `data/` and `cache/`; the processes' output goes to `<name>.log`.
        job: the training of a round.
    """
    pipes, processes = [], []
    with tempfile.TemporaryDirectory(prefix="bench-") as short, (folder / f"{name}.log").open("wb") as log:
        port, n = str(_free_port()), N_PROCESSES[name]
        for rank in range(n):
            here, there = Pipe()
            words = [f"benchmarks.simulators.by_{name}", str(there.fileno()), str(folder), json.dumps(asdict(job))]
            process = subprocess.Popen(  # noqa: S603 - ours
                [python_of(name), "-m", *words],
                env={**os.environ, **QUIET, **_group(rank, n, port), "BENCH_SHORT": short, "PYTHONPATH": str(ROOT)},
                cwd=ROOT,
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            there.close()  # so that the end of the process is noticed here
            pipes.append(here)
            processes.append(process)
        running = Simulator(name, job, pipes, processes)
        try:
            for pipe in pipes:
                running.receive(pipe, READY_S)
            yield running
        except RuntimeError as error:
            tail = (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-2000:]
            raise RuntimeError(f"{error}\n{tail}") from None
        finally:
            _end(pipes, processes)


def _group(rank: int, n: int, port: str) -> dict[str, str]:
    """What `torchrun` tells the processes of a group about each other."""
    found = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n, "TORCHELASTIC_RUN_ID": "bench"}
    return {**{name: str(value) for name, value in found.items()}, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(pipes: Sequence[Connection], processes: Sequence[subprocess.Popen[bytes]]) -> None:
    started = [pid for process in processes for pid in descendants(process.pid)]
    for pipe in pipes:
        pipe.close()
    for process in processes:
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            for pid in (process.pid, *started):
                _kill(pid)
            process.wait()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
