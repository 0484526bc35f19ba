"""The placement of a round at one edge: which agents host the seats that visit it. It never affects a result."""

from __future__ import annotations

from functools import cached_property
from typing import Literal, Self

from pydantic import model_validator

from shared.core.errors import BadInput
from shared.core.number_sets import NumberSet, SetIndex
from shared.core.records import Record


class Host(Record):
    """An agent and those of its seats that visit an edge.

    Attributes:
        agent: its id.
        url: its address.
        seats: that visit the edge.
        presence: of an agent that is `absent`, because it sends no heartbeats, or `offline`, because it was taken
            offline, the seats are selected like others, and their visits fail.
        profile: name of its profile, if the spec takes the seats' profiles from their agents.
    """

    agent: str
    url: str
    seats: NumberSet
    presence: Literal["present", "absent", "offline"] = "present"
    profile: str | None = None


class EdgePlacement(Record):
    """The agents whose seats visit an edge in a round; orders hold its digest."""

    run_id: str
    edge: int
    hosts: tuple[Host, ...]

    @model_validator(mode="after")
    def _one_host_each(self) -> Self:
        _ = self._index  # refuses seats with two hosts
        return self

    @cached_property
    def _index(self) -> SetIndex:
        return SetIndex([host.seats for host in self.hosts])

    @property
    def seats(self) -> NumberSet:
        """All seats that visit the edge."""
        return self._index.all

    @cached_property
    def present(self) -> NumberSet:
        """Those whose agents are present: no other gets an order."""
        return SetIndex([host.seats for host in self.hosts if host.presence == "present"]).all

    def check_seats(self, n_seats: int) -> None:
        """Checks that all seats are of the run.

        Raises:
            BadInput: one is not.
        """
        if len(self.seats) and self.seats.array[-1] >= n_seats:
            raise BadInput(
                f"an agent is assigned device {self.seats.array[-1]}, the run has {n_seats} devices", field="hosts"
            )

    def host(self, seat: int) -> Host:
        """The agent of a seat that visits the edge."""
        found = self._index.find(seat)
        if found is None:
            raise KeyError(seat)
        return self.hosts[found]

    def profile(self, seat: int) -> str | None:
        """The name of the profile of a seat's agent, if the spec takes it from there and an agent hosts the seat."""
        found = self._index.find(seat)
        return None if found is None else self.hosts[found].profile
