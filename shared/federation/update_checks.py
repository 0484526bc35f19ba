"""Checks of an update: at the visit that made it, and at the edge and the cloud before they aggregate it.

An agent may send anything, and a sum accepts whatever has the update's type. An update with unknown tensor names, in
the name of another client, or of other data would stay in the cloud's state and make the run fail or bias it in later
rounds. Refused on arrival, it costs one contribution.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from shared.core.errors import BadInput, WireError
from shared.core.records import Record
from shared.core.update_annotations import Mean, averaged_type, fields_with, unexpected_client
from shared.federation.context import Context, device_id
from shared.federation.experiment import Experiment


def check_origin(experiment: Experiment, ctx: Context, update: Record, clients: Collection[str]) -> None:
    """Refuses an update that cannot come from its sender.

    Args:
        experiment: of the run.
        ctx: context of the visit that made the update, or of the edge; for a sum, of one of its visits.
        update: of the algorithm's type; for a sum its stand-in, as `check_partial_sum` returns it.
        clients: ids of the clients of which it may hold `PerClient` values.

    Raises:
        WireError: naming the field, and the client or tensor.
        BadInput: a visit reports a value of its client although several visits are made for the same client.
    """
    _check_clients(ctx, update, clients)
    _check_names(experiment, ctx, update)
    experiment.algorithm.check(ctx, update)


def clients_of(ctx: Context, seats: Iterable[int]) -> frozenset[str]:
    """The clients of which the updates of these seats' visits may hold `PerClient` values.

    Empty if several visits may be made for the same client, since `PerClient` keeps one value of each.
    """
    if ctx.spec.client != "device" or ctx.spec.plans:
        return frozenset()
    return frozenset(map(device_id, seats))


def _check_clients(ctx: Context, update: Record, clients: Collection[str]) -> None:
    found = unexpected_client(update, clients)
    if found is None:
        return
    field, client = found
    if client == ctx.client_id:
        several = "each of its workers" if ctx.spec.client == "edge" else "several tasks of planned shares"
        cause = f"a value of {client} would come from {several}; the edge's own update may bring it"
        raise BadInput(f"{field}: {cause}", field=field)
    allowed = ", ".join(sorted(clients)[:5]) or "no client"
    raise WireError(f"{field}: a value of {client[:40]!r}, allowed here: {allowed}", field=field)


def _check_names(experiment: Experiment, ctx: Context, update: Record) -> None:
    """Checks that averaged maps hold exactly the tensors that `Footprint.sends` names."""
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
                cause = f"{has} {odd[0][:80]!r}, other than `Footprint.sends` says"
                raise WireError(f"{what} of {ctx.client_id} {cause}", field=field)
