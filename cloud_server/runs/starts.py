"""The model with which a run begins: the seeded one, that of another run, or one from a file.

Only the cloud reads files, and only below its folders of data and of results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from cloud_server.runs.checkpoint import Checkpoint
from cloud_server.runs.loose_checkpoint import checkpoint_type
from cloud_server.runs.provenance import reopened
from cloud_server.runs.run_state import CloudServices, RunState
from cloud_server.runs.start_checks import check_fit, check_skip, line_of, widened
from shared.core.errors import BadInput, Conflict, NotFound
from shared.core.tensor_records import TensorMap
from shared.core.tensors import digest, n_bytes, only, private_copies
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.inference import Trained
from shared.run_records.runs import RunInfo
from shared.spec.fields import Init

BEST = "best"
"""The name of the best round's global model."""
HEADER_BYTES = 2**20
"""By how much a file may be larger than the model's tensors."""


async def first_checkpoint(
    services: CloudServices, experiment: Experiment, ctx: Context
) -> tuple[Checkpoint[Any], str | None, tuple[str, ...]]:
    """The state of a run before its first round, the digest of the model that `init` names, and what it took of it.

    Raises:
        BadInput: that model is not there, cannot be read or does not fit; names field and tensor.
    """
    model, lines = await initial_model(services, experiment)
    state = experiment.algorithm.cloud.init(ctx, model)
    checkpoint = checkpoint_type(experiment)(round_no=0, state=state, bases={}, edge_bases={}, retired={})
    return checkpoint, digest(model) if experiment.spec.init else None, lines


async def initial_model(services: CloudServices, experiment: Experiment) -> tuple[TensorMap, tuple[str, ...]]:
    """The model with which a run of this experiment begins, and a line that says which tensors `init` gave it."""
    init = experiment.spec.init
    if init is None:
        return experiment.initial, ()
    found = await source_of(services, init)
    if isinstance(found, RunInfo):
        model = await committed_model(services, found, init.model)
        names = frozenset(model)
    else:
        most = 2 * n_bytes(experiment.shapes) + HEADER_BYTES
        model, names = await services.thread.run(_read, found, init, most)
    taken = {own: tensor for name, tensor in model.items() if (own := init.renamed(name)) is not None}
    taken = _untied(taken, experiment.tied_names, init)
    kept = {name for name in experiment.shapes if init.skips(name)}
    check_skip(init, names | experiment.shapes.keys())
    whole = taken | only(experiment.initial, kept) if kept else taken
    whole, dtypes = widened(whole, experiment.shapes)
    check_fit(whole, experiment.shapes, init, names)
    return whole, line_of(init, len(taken), names, kept, dtypes)


async def source_of(services: CloudServices, init: Init) -> RunInfo | Path:
    """Where a model is: a run that the store knows, else a file.

    Raises:
        BadInput: there is neither.
    """
    runs_dir, data_dir = services.results.runs_dir, services.experiments.data_dir
    if init.run is None:
        return await services.thread.run(_inside, init, init.file or "", [data_dir, runs_dir])
    try:
        return await services.repository.info(init.run)
    except NotFound:
        if init.model != "global":
            raise BadInput(f"init.run: no run {init.run!r}", field="init.run") from None
        return await services.thread.run(_inside, init, f"{init.run}/model.safetensors", [runs_dir])


async def committed_model(services: CloudServices, info: RunInfo, name: str) -> TensorMap:
    """A model of a run's last checkpoint.

    Raises:
        Conflict: the run has not started yet.
        NotFound: no model of that name; lists the names.
    """
    if not info.resolved:
        raise Conflict(f"run {info.run} is {info.status}: it has not started yet")
    experiment = await services.thread.run(reopened, services.experiments, info)
    best = await best_model(services, info, experiment)
    if name == BEST and best is not None:
        return best
    found = await services.repository.checkpoint(info.run, experiment)
    if found is None:
        raise NotFound(f"run {info.run} has no committed round yet")
    models = _models(experiment, found[0]) | ({BEST: best} if best is not None else {})
    if name not in models:
        why = "" if name != BEST else ": a best one is kept with `validation`, or with stop.patience on: test"
        raise NotFound(f"run {info.run} has no model {name!r}; it has {', '.join(sorted(models)) or 'none'}{why}")
    return models[name]


async def best_model(services: CloudServices, info: RunInfo, experiment: Experiment) -> TensorMap | None:
    """The global model of a run's best round so far; None of a run that compares no rounds."""
    found = await services.repository.best_checkpoint(info.run, experiment)
    return None if found is None else _models(experiment, found[0])["global"]


async def kept_models(services: CloudServices, info: RunInfo, state: RunState) -> Trained:
    """The models of a run's last round and, as `best`, of its best one, if there is one; and what their use needs."""
    experiment, checkpoint = state.experiment, state.checkpoint
    last = Trained.of(experiment, _context(experiment, checkpoint), checkpoint.state)
    best = await best_model(services, info, experiment)
    return last if best is None else replace(last, models={**last.models, "best": best})


def _models(experiment: Experiment, checkpoint: Checkpoint[Any]) -> dict[str, TensorMap]:
    return experiment.algorithm.cloud.models(_context(experiment, checkpoint), checkpoint.state)


def _context(experiment: Experiment, checkpoint: Checkpoint[Any]) -> Context:
    phase = experiment.phase_of(max(checkpoint.round_no, 1)).name
    return experiment.ctx(phase=phase, round_no=checkpoint.round_no, n_clients=1)


def _inside(init: Init, name: str, roots: list[Path | None]) -> Path:
    """The file of this name below one of these folders; a link that leads out of it is none."""
    for root in roots:
        if root is None:
            continue
        path = (root / name).resolve()
        if path.is_relative_to(root.resolve()) and path.is_file():
            return path
    where = "the cloud's folder of results" if init.run else "the cloud's folders of data and results"
    raise BadInput(f"{init.field}: no file {name!r} in {where}", field=init.field)


def _read(path: Path, init: Init, most_bytes: int) -> tuple[TensorMap, frozenset[str]]:
    """The tensors of a file that a run uses, in torch's own memory, and the names of all."""
    try:
        with safe_open(path, "pt") as file:
            names = frozenset(file.keys())
            used = sorted(name for name in names if init.renamed(name) is not None)
            size = sum(4 * math.prod(file.get_slice(name).get_shape()) for name in used)
            if size > most_bytes:
                why = f"{path.name} has {size} bytes of float32, more than this model can need"
                raise BadInput(f"{init.field}: {why}", field=init.field)
            return private_copies({name: file.get_tensor(name) for name in used}), names
    except (SafetensorError, OSError, ValueError) as error:
        why = f"{path.name} is not a readable safetensors file: {str(error)[:200]}"
        hint = "; `safetensors.torch.save_file(model.state_dict(), path)` writes one"
        raise BadInput(f"{init.field}: {why}{hint}", field=init.field) from None


def _untied(model: TensorMap, tied: Mapping[str, str], init: Init) -> TensorMap:
    """The model without the further names of tied tensors, under which a state dict repeats them.

    Raises:
        BadInput: a tensor differs under its two names.
    """
    for name, first in tied.items():
        if name in model and first in model and not torch.equal(model[name], model[first]):
            why = f"{name!r} and {first!r} are one tensor in the run's model, but differ here"
            raise BadInput(f"{init.field}: {why}", field=init.field)
    firsts = {first: model[name] for name, first in tied.items() if name in model and first not in model}
    return {name: tensor for name, tensor in (model | firsts).items() if name not in tied}
