"""What records say of the groups (writers, hospitals, domains) whose samples a client has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Protocol, TypedDict

from pydantic import Field

GroupNames = Annotated[tuple[str, ...], Field(exclude_if=lambda names: not names)]
"""Names of groups, the one with most samples first; left out of a record that has none."""
GroupCount = Annotated[int, Field(exclude_if=lambda n: n == 0)]
"""The number of a client's groups, those included that are not named; left out of a record that has none."""
MOST_NAMED = 10
"""Most groups of a client that a record names."""
MOST_TESTED = 256
"""Most groups on whose test samples, group by group, the models of a run are tested in the end."""
GLOBAL_ON, RECEIVED_OF, OWN_OF = "global_on_group_", "clients_received_of_group_", "clients_own_of_group_"
"""What the names of evaluations by group begin with: of the global model on a group's test samples; of the models that
the clients of this group alone have received, and of their own, the mean over these clients."""


class GroupFields(TypedDict):
    """The fields of a record that name groups."""

    groups: tuple[str, ...]
    n_groups: int


class Grouped(Protocol):
    """A record that names groups."""

    @property
    def groups(self) -> tuple[str, ...]: ...
    @property
    def n_groups(self) -> int: ...


def group_fields(names: Sequence[str]) -> GroupFields:
    """Returns the fields of a record of a client with these groups."""
    return {"groups": tuple(names[:MOST_NAMED]), "n_groups": len(names)}


def groups_text(row: Grouped) -> str:
    """Returns a client's groups as people are shown them, empty for none."""
    more = row.n_groups - len(row.groups)
    return ", ".join(row.groups) + (f" and {more} more" if more > 0 else "")
