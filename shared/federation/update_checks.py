"""What may come in as an update: seen to at a visit that made one, and by the edge and the cloud before they add it up.

An agent may send what it likes. A sum takes all that has its type; what has a strange name, is of somebody else, or of
other data would stay in the cloud's state, and end the run, or spoil it, rounds later. Where it comes in it costs one
contribution, whatever came before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from shared.core.aggregation_rules import Mean, averaged_type, fields_with, unexpected_client
from shared.core.errors import BadInput, WireError
from shared.core.records import Record
from shared.federation.context import Context
from shared.federation.experiment import Experiment


def check_origin(experiment: Experiment, ctx: Context, update: Record, clients: Collection[str]) -> None:
    """Refuse an update that cannot be of those who send it.

    Args:
        lab: of the run.
        ctx: of the visit that made it, or of the edge; of a sum that of one of the visits behind it.
        update: of the algorithm's type; in the place of a sum its stand-in, as `check_folded` makes it.
        clients: of whom it may speak.

    Raises:
        WireError: naming field, and client or tensor.
        BadInput: a visit speaks of its client where others may, too.
    """
    _check_clients(ctx, update, clients)
    _check_names(experiment, ctx, update)
    experiment.algorithm.check(ctx, update)


def named_by(visits: Iterable[Context]) -> frozenset[str]:
    """The clients of whom the updates of visits may speak: of nobody where several visits are the same client's.

    `Each` keeps one value of a client.
    """
    return frozenset(ctx.client_id for ctx in visits if ctx.spec.client == "device" and not ctx.spec.plans)


def _check_clients(ctx: Context, update: Record, clients: Collection[str]) -> None:
    found = unexpected_client(update, clients)
    if found is None:
        return
    field, client = found
    if client == ctx.client_id:
        several = "each of its workers" if ctx.spec.client == "edge" else "several visits of planned shares"
        told = f"{field}: a value of {client} would come from {several}; the edge's own update may bring it"
        raise BadInput(told, field=field)
    known = ", ".join(sorted(clients)[:5]) or "nobody"
    raise WireError(f"{field}: a value of {client[:40]!r}, where it may be of {known}", field=field)


def _check_names(experiment: Experiment, ctx: Context, update: Record) -> None:
    """See that averaged maps hold the tensors that the algorithm sends from here, all of them and no others."""
    kind, sends = type(update), experiment.algorithm.footprint.sends(ctx, experiment.shapes)
    for field, how in fields_with(kind, Mean).items():
        value = getattr(update, field)
        if value is None or not issubclass(averaged_type(kind, field, how), Mapping):
            continue
        groups: Mapping[str, Any] = value if how.by_group else {"": value}
        for group, tensors in groups.items():
            odd = sorted(tensors.keys() ^ sends.get(field, frozenset()))
            if odd:
                has = "holds" if odd[0] in tensors else "lacks"
                what = f"{field} {group[:40]}".strip()
                told = f"{what} of {ctx.client_id} {has} {odd[0][:80]!r}, other than `Footprint.sends` says"
                raise WireError(told, field=field)
