"""The other end of the pipe: in the process of a simulator, with the packages of its virtual environment alone."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from benchmarks.loops import Job, Work


class EndOfRounds(Exception):
    """No further round is wanted."""


class Rounds:
    """The rounds that are wanted, one after another."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._work = pipe, b"ready"

    def did(self, work: Work) -> None:
        """Keeps what the round did, to be reported when the simulator asks for the next."""
        self._work = json.dumps(asdict(work)).encode()

    def next(self) -> None:
        """Reports the work of the round before and waits until another is wanted.

        Raises:
            EndOfRounds: none is.
        """
        try:
            self._pipe.send_bytes(self._work)
            self._pipe.recv_bytes()
        except (EOFError, OSError):
            raise EndOfRounds from None


def opened() -> tuple[Rounds, Path, Job]:
    """The rounds, the folder and the job that the command line names: a file descriptor, a path and JSON."""
    number, folder, job = sys.argv[1:]
    os.set_inheritable(int(number), False)
    torch.set_num_threads(1)
    return Rounds(Connection(int(number))), Path(folder), Job(**json.loads(job))
