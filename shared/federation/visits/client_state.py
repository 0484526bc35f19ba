"""The state that a client keeps from one visit to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shared.core.records import Record
from shared.core.tensor_records import TensorMap
from shared.federation.hooks import Algorithm
from shared.storage.states import StateOwner, StateStore, Version
from shared.wire import codec

S = TypeVar("S")


class StateWithResidual(Record, Generic[S]):
    """A seat's state together with the residual of its compressed updates, if the spec's codec has error feedback."""

    state: S
    memory: TensorMap


@dataclass(frozen=True)
class ClientStateAccess:
    """Loads and saves the state of one seat. For an algorithm with stateless devices nothing is stored.

    Args:
        algorithm: the run's algorithm.
        states: the store of states.
        owner: the seat.
        base_version: the version after its last visit that counts; None before the first.
        with_residual: whether the residual of its compressed updates is stored as well.
        keep_from: the oldest version from which a repetition may begin; None if it is `base_version`.
    """

    algorithm: Algorithm
    states: StateStore
    owner: StateOwner
    base_version: Version | None
    with_residual: bool = False
    keep_from: Version | None = None

    @property
    def _keeps(self) -> bool:
        return self.algorithm.device_remembers or self.with_residual

    def load(self) -> tuple[Any, TensorMap, bool]:
        """State and residual of `base_version`, and whether it is missing, so that the seat starts anew."""
        if self.base_version is None or not self._keeps:
            return None, {}, False
        data = self.states.load(self.owner, self.base_version)
        if data is None:
            return None, {}, True
        if not self.with_residual:
            return codec.decode(self.algorithm.device_state, data, stored=True, copied=True), {}, False
        kind: type[Any] = StateWithResidual[self.algorithm.device_state]  # type: ignore[name-defined]
        found = codec.decode(kind, data, stored=True, copied=True)
        return found.state, found.memory, False

    def save(self, version: Version, state: Record, residual: TensorMap) -> None:
        """Saves the state after a visit; drops those from which no repetition can begin.

        That holds for the states of earlier visits of the same round, too: a round is repeated from its beginning.
        """
        if not self._keeps:
            return
        if self.base_version is not None:
            self.states.forget_before(self.owner, min(self.base_version, self.keep_from or self.base_version))
            self.states.forget_between(self.owner, Version(version.round_no), self.base_version)
        kept = StateWithResidual[Any](state=state, memory=residual) if self.with_residual else state
        self.states.save(self.owner, version, codec.encode(kept).parts)
