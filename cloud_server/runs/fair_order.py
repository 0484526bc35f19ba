"""In which order pending runs begin: their owners take turns, and of each owner the oldest run is next.

The owner is next of whom the fewest runs train and, of several such, the one whose last turn is longest ago. Hence
nobody waits for more than one run of each other owner, however many these have queued; and the runs of one owner begin
in the order of their creation. The order never affects a result.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from pydantic import TypeAdapter, ValidationError

from shared.core.field_errors import told
from shared.run_records.runs import RunInfo, owner_name
from shared.storage import redis_keys
from shared.storage.key_value import Store

log = logging.getLogger(__name__)
MAX_OWNERS = 2000
"""Most owners whose last turn is remembered."""
WAITING = "waiting: another run trains"
_TURNS = TypeAdapter(dict[str, int])


def fair_order(
    waiting: Sequence[RunInfo],
    training: Sequence[RunInfo],
    turns: Mapping[str, int],
    interrupted: Collection[str] = (),
) -> Iterator[RunInfo]:
    """Yields pending runs in the order in which they begin, if no further ones come and no owner's run ends first.

    Args:
        waiting: the pending runs.
        training: the runs that train.
        turns: by owner, the number of the last turn.
        interrupted: runs that trained when the cloud was stopped; their owners are first.
    """
    queues: dict[str, deque[RunInfo]] = {}
    for info in sorted(waiting, key=lambda info: info.order):
        queues.setdefault(info.owner_name, deque()).append(info)
    n_training, last = Counter(info.owner_name for info in training), dict(turns)
    n_begun = Counter(info.owner_name for info in waiting if info.run in interrupted)

    def rank(owner: str) -> tuple[bool, int, int, tuple[int, str], str]:
        return not n_begun[owner], n_training[owner], last.get(owner, 0), queues[owner][0].order, owner

    turn, ranks = max(last.values(), default=0), [rank(owner) for owner in queues]
    heapify(ranks)
    while ranks:
        owner = heappop(ranks)[-1]
        info = queues[owner].popleft()
        yield info
        turn += 1
        last[owner] = turn
        n_training[owner] += 1
        n_begun[owner] -= info.run in interrupted
        if queues[owner]:
            heappush(ranks, rank(owner))


class Turns:
    """Whose turn it was, kept in Redis: a restarted cloud goes on with the next owner.

    Args:
        store: Redis.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.last: dict[str, int] = {}

    async def load(self) -> None:
        """Read whose turn it was."""
        data = await self.store.get(redis_keys.CLOUD_TURNS)
        try:
            self.last = _TURNS.validate_json(data) if data else {}
        except ValidationError as error:  # it only says who waits how long
            log.warning("whose turn it is cannot be read, so all owners begin anew: %s", told(error))
            self.last = {}

    async def taken(self, owner: str | None) -> None:
        """Note that an owner's run begins. Nothing is stored while all runs are one owner's."""
        name, newest = owner_name(owner), max(self.last.values(), default=0)
        if not newest or self.last.get(name) != newest:
            known = sorted({**self.last, name: newest + 1}.items(), key=lambda item: item[1])
            self.last = dict(known[-MAX_OWNERS:])
            await self.store.put(redis_keys.CLOUD_TURNS, _TURNS.dump_json(self.last))


def wait_reasons(
    order: Iterable[RunInfo], training: Sequence[RunInfo], asked: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yields pending runs, and why each waits while as many train as may.

    Args:
        order: the pending runs in the order in which they begin.
        training: the runs that train.
        asked: the runs of which to say it.
    """
    now = _told(Counter(info.owner_name for info in training))
    text, before = f"waiting: as many runs train as may at a time, {now}", Counter[str]()
    for info in order:
        if info.run in asked:
            yield info.run, f"{text}; to begin before this one: {_told(before)}" if before else text
        before[info.owner_name] += 1


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} of {owner}" for owner, n in sorted(counts.items()))
