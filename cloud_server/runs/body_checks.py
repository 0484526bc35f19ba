"""Whether each tier takes the bodies of a run: known before its first round, from what the algorithm sends.

The sizes are lower bounds: names, shapes and outcomes come on top, and so do the messages of further groups of seats. A
body that is too large all the same is refused where it arrives.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from cloud_server.nodes.registry import Registry
from cloud_server.runs.run_state import RunState
from shared.core.errors import BadInput
from shared.core.tensor_records import TensorMap
from shared.core.tensors import n_bytes
from shared.core.update_annotations import Mean, rule_of
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.wire import codec

log = logging.getLogger(__name__)
AMPLE = 64
"""A limit of so many times the model is never looked at more closely."""


@dataclass(frozen=True)
class Link:
    """What one side of a link takes.

    Attributes:
        what: is sent, in words.
        size: of it, in bytes.
        limits: of those that receive it, by name.
        setting: that limits it there.
    """

    what: str
    size: int
    limits: Mapping[str, int]
    setting: str


def check_bodies(registry: Registry, state: RunState, ctx: Context) -> None:
    """Checks the sizes of a run's messages against the limits that the cloud and its live nodes have.

    Args:
        registry: knows the nodes.
        state: of the run, before its next round.
        ctx: of that round.

    Raises:
        BadInput: one is larger; names link, size, model, node, limit and setting.
    """
    experiment, model_bytes = state.experiment, n_bytes(state.experiment.shapes)
    edges, agents = _limits(registry)
    least = min([registry.caller.max_bytes, *edges.values(), *agents.values()])
    if least >= AMPLE * model_bytes:
        return
    for link in _links(registry, state, ctx.at(edge=0), edges, agents):
        for node, limit in sorted(link.limits.items()):
            if link.size > limit:
                model = f"the model {experiment.spec.model.name}: {model_bytes}"
                what = f"{link.what} has {link.size} bytes or more ({model})"
                why = f"{what}, and {node} takes {limit} at most: raise {link.setting} there, or take a smaller model"
                raise BadInput(f"model.name: {why}", field="model.name")


def _limits(registry: Registry) -> tuple[dict[str, int], dict[str, int]]:
    """The limits of the live edges and agents by name, of those that say them."""
    edges = {f"edge {name}": registry.edges[name].max_body_bytes for name in registry.live_edges()}
    agents = {f"agent {entry.name}": entry.max_body_bytes for entry in registry.live_agents()}
    return {node: n for node, n in edges.items() if n}, {node: n for node, n in agents.items() if n}


def _links(
    registry: Registry, state: RunState, ctx: Context, edges: dict[str, int], agents: dict[str, int]
) -> Iterator[Link]:
    experiment, cloud = state.experiment, {"the cloud": registry.caller.max_bytes}
    states = (state.checkpoint.state, *_after_a_round(experiment, state.checkpoint.state, ctx))
    order, message = map(max, zip(*(_down_bytes(experiment, each, ctx) for each in states), strict=True))
    yield Link("the request to an edge", order, edges, "EDGE_MAX_BODY_BYTES")
    yield Link("the request to a device", message, agents, "AGENT_MAX_BODY_BYTES")
    hosted = max(state.placement.loads().values(), default=1)
    yield Link("the answer of an agent to its edge", _up_bytes(experiment, ctx, hosted), edges, "EDGE_MAX_BODY_BYTES")
    yield Link("the answer of an edge", _edge_bytes(experiment, ctx), cloud, "CLOUD_MAX_BODY_BYTES")


def _after_a_round(experiment: Experiment, state: Any, ctx: Context) -> list[Any]:
    """The cloud's state after a round of updates that change nothing; none where the algorithm needs real ones.

    Before its first round an algorithm may not have made all that it sends later, such as control variates.
    """
    algorithm, shapes = experiment.algorithm, experiment.shapes
    sent = algorithm.footprint.sends(ctx, shapes)
    zeros = {
        field: {name: torch.zeros(shapes[name].shape, dtype=shapes[name].dtype) for name in names if name in shapes}
        for field, names in sent.items()
    }
    try:
        counted = ctx.at(edge=None, n_updates=1, n_samples=1)
        return [algorithm.cloud.aggregate(counted, state, algorithm.update(**zeros))]
    except Exception as error:  # whatever it is, a round will show it
        log.debug("the sizes of later rounds are not known: %r", error)
        return []


def _down_bytes(experiment: Experiment, state: Any, ctx: Context) -> tuple[int, int]:
    """The bytes of the broadcast to the first edge, and of the message that this makes of it for its first seat."""
    seats = [seat for seat in experiment.population.seats if seat.home_edge == 0]
    broadcast = experiment.algorithm.cloud.broadcast(ctx, state, 0, seats)
    order = codec.size(experiment.edge_compressor.messages()(broadcast))
    edge = experiment.algorithm.edge
    begun = edge.begin(ctx, edge.init(ctx), broadcast)
    if not seats or not begun.edge_rounds:
        return order, 0
    message = edge.dispatch(ctx, begun.state, seats[0])
    return order, codec.size(experiment.compressor.messages()(message))


def _summed(experiment: Experiment, sent: Mapping[str, Collection[str]]) -> list[TensorMap]:
    """The tensors of each field that is added up; of what is averaged per position the sum may be smaller."""
    kind, shapes = experiment.algorithm.update, experiment.shapes
    rules = {field: rule_of(kind, field) for field in sent}
    added = [field for field, rule in rules.items() if isinstance(rule, Mean) and not rule.per_position]
    return [{name: shapes[name] for name in sent[field] if name in shapes} for field in added]


def _n_elements(fields: Iterable[TensorMap]) -> int:
    return sum(tensor.numel() for tensors in fields for tensor in tensors.values())


def _up_bytes(experiment: Experiment, ctx: Context, hosted: int) -> int:
    """The bytes of the updates that an agent sends at least, of so many seats: single ones, or their sum."""
    spec, algorithm, at_seat = experiment.spec, experiment.algorithm, ctx.at(seat=0)
    own = ctx.model.link_use.up_bytes
    if spec.select != "all" or spec.clock == "real" or spec.sync.devices.asynchronous:
        return own
    n = min(hosted, sum(seat.home_edge == 0 for seat in experiment.population.seats)) or 1
    if algorithm.reports or spec.may_refuse:
        return own
    summed = 8 * _n_elements(_summed(experiment, algorithm.footprint.sends(at_seat, experiment.shapes)))
    return min(n * own, summed) if summed else own


def _edge_bytes(experiment: Experiment, ctx: Context) -> int:
    """The bytes of the sum or the mean that an edge sends at least."""
    sends, coded = experiment.algorithm.footprint.sends, experiment.edge_compressor
    found = [_summed(experiment, sends(at, experiment.shapes)) for at in (ctx, ctx.at(seat=0))]
    if coded.up is not None:
        return min(sum(coded.carried_bytes(tensors, coded.up) for tensors in fields) for fields in found)
    return min(map(_n_elements, found)) * (4 if experiment.spec.sends_means else 8)
