"""A connection to a cloud, which the objects that come from it share."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shared.core.errors import Conflict
from shared.run_records.runs import RunInfo
from strata.api.client import Client


@dataclass
class Connection:
    """A client of a cloud, until it is closed.

    Attributes:
        runs_dir: the folder into which the cloud writes results, if it runs on this machine.
        check: raises if the cloud cannot go on.
        keep: has the cloud's state outlive it if the results of an ended run are not all in their folder, and says so.
        closed: whether `close` was called.
    """

    own_client: Client
    runs_dir: Path | None = None
    check: Callable[[], None] = lambda: None
    keep: Callable[[RunInfo, Path], str | None] = lambda info, folder: None
    closed: bool = False

    def __post_init__(self) -> None:
        weakref.finalize(self, self.own_client.close)  # of a connection that nobody closed

    def __reduce__(self) -> str:
        """A connection is no value.

        Raises:
            TypeError: always; says what to pass to another process in its place.
        """
        raise TypeError(
            "a cloud and its runs hold a connection, which cannot be copied or pickled: "
            "pass `cloud.url` and `run.id`, and call `strata.connect(url).get_run(id)` there"
        )

    @property
    def url(self) -> str:
        """The address of the cloud."""
        return self.own_client.url

    @property
    def client(self) -> Client:
        """The client.

        Raises:
            Conflict: the connection is closed.
        """
        if self.closed:
            raise Conflict(f"the connection to the cloud at {self.url} is closed")
        return self.own_client

    def close(self) -> None:
        """Close it; a second call does nothing."""
        self.closed = True
        self.own_client.close()
