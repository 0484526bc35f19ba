"""The state that a client keeps from one visit to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shared.core.records import Record
from shared.core.tensor_records import TensorMap, copy_tensors
from shared.federation.hooks import Algorithm
from shared.storage.states import StateOwner, StateStore, Version
from shared.wire import codec

S = TypeVar("S")


class Remembered(Record, Generic[S]):
    """A seat's state together with the residual of its compressed updates, if the spec's codec has error feedback."""

    state: S
    memory: TensorMap


@dataclass(frozen=True)
class StateOf:
    """Loads and saves the state of one seat. For an algorithm with stateless devices nothing is stored.

    Args:
        algorithm: the run's algorithm.
        states: the store of states.
        owner: the seat.
        base: the version after its last visit that counts; None before the first.
        with_memory: whether the residual of its compressed updates is stored as well.
    """

    algorithm: Algorithm
    states: StateStore
    owner: StateOwner
    base: Version | None
    with_memory: bool = False

    @property
    def _keeps(self) -> bool:
        return self.algorithm.device_remembers or self.with_memory

    def load(self) -> tuple[Any, TensorMap, bool]:
        """State and residual of version `base`, and whether that version is missing, so that the seat starts anew."""
        if self.base is None or not self._keeps:
            return None, {}, False
        data = self.states.load(self.owner, self.base)
        if data is None:
            return None, {}, True
        if not self.with_memory:
            return copy_tensors(codec.decode(self.algorithm.device_state, data, stored=True)), {}, False
        kind: type[Any] = Remembered[self.algorithm.device_state]  # type: ignore[name-defined]
        found = copy_tensors(codec.decode(kind, data, stored=True))
        return found.state, found.memory, False

    def save(self, version: Version, state: Record, memory: TensorMap) -> None:
        """Saves the state after a visit, and drops the versions older than `base`, which no repeated visit can need."""
        if not self._keeps:
            return
        if self.base is not None:
            self.states.forget_before(self.owner, self.base)
        kept = Remembered[Any](state=state, memory=memory) if self.with_memory else state
        self.states.save(self.owner, version, codec.encode(kept).parts)
