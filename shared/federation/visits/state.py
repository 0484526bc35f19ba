"""The state that a client keeps from one visit to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shared.core.records import Record, TensorMap, copy_tensors
from shared.federation.hooks import Algorithm
from shared.storage.states import StateOwner, StateStore, Version
from shared.wire import codec

S = TypeVar("S")


class Remembered(Record, Generic[S]):
    """A seat's state with what was left out of its updates, where the spec's codec feeds that back."""

    state: S
    memory: TensorMap


@dataclass(frozen=True)
class StateOf:
    """What a seat remembers from visit to visit; of an algorithm whose devices remember nothing, nothing is kept.

    Args:
        algorithm: of the run.
        states: where states lie.
        owner: the seat.
        base: the version of its last visit that counts, None before the first.
        with_memory: whether what was left out of its updates is kept as well.
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
        """State and memory of exactly the base, and whether one was named but is not here (a fresh start)."""
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
        """Keep what the visit left behind, and drop what no replay can need."""
        if not self._keeps:
            return
        if self.base is not None:
            self.states.forget_before(self.owner, self.base)
        kept = Remembered[Any](state=state, memory=memory) if self.with_memory else state
        self.states.save(self.owner, version, codec.encode(kept).parts)
