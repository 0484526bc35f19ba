"""`Experiment`: everything that follows from a spec: algorithm, data, population, model, steps of exact sums.

Each tier derives the same experiment from the spec in a message. An experiment belongs to one thread: its scratch
model serves one training or evaluation at a time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

from shared.core.errors import BadInput
from shared.core.randomness import seeded_generators, stream_seed
from shared.core.records import Record, canonical
from shared.core.tensor_records import Tensor, TensorMap
from shared.core.tensors import n_bytes, without
from shared.federation.aggregation import FixedPoint
from shared.federation.context import Context, ModelInfo
from shared.federation.data_arrival import collected
from shared.federation.data_checks import check_data
from shared.federation.data_faults import DataFaults
from shared.federation.dtype_checks import check_dtypes
from shared.federation.groups import groups_of
from shared.federation.hooks import Algorithm, Phase
from shared.federation.link_bytes import LinkBytes
from shared.federation.memory_check import check_memory
from shared.federation.messages import Task, wire_types
from shared.federation.own_hooks import with_checked_hooks
from shared.federation.plugin_checks import draws_freely, packages_of
from shared.federation.population import Population, Seat, population, seated
from shared.federation.population.population import KEPT_SEATS
from shared.federation.registry import load_algorithm, load_local
from shared.federation.scoring import scoring_of
from shared.federation.scoring_trials import try_scoring
from shared.federation.server_optimizers import with_server_optimizers
from shared.federation.update_weights import check_steps, check_weights, largest_total
from shared.spec.experiment import ExperimentSpec
from shared.training import models
from shared.training.compute_device import ComputeDevice, compute_device_of
from shared.training.data.dataset import Dataset
from shared.training.data.open_data import open_data
from shared.training.flops import step_flops, training_flops
from shared.training.loop import channels_last
from shared.training.partition import SampledPartition
from shared.training.sample_cache import SampleCache
from shared.training.stacked.layers import check_layers
from shared.training.stacked.training import StackTrainer
from shared.training.subnetworks.unit_graph import units_of
from shared.training.subnetworks.units import Units
from shared.wire.compression import Compressor


class Experiment:
    """What a process derives from a resolved spec, once.

    Attributes:
        params: parameters of the spec's algorithm.
        local, local_params: the algorithm that gives the local objective, and its parameters.
        draws_freely: whether code of a user may draw from the default generators.
        wire_types: the bodies that tiers exchange, parametrised with the algorithm's records.
        shapes: the model's tensors as shapes and dtypes, without elements; a tied tensor once, by its first name.
        norm_names: names of the parameters of the model's batch-norm.
        tied_names: further names of tied tensors, with the first.
        personal_names: names of the tensors that clients keep, or share otherwise than as FedAvg does.
        trainable_names, frozen_names: of the model's parameters, those that training changes, in order, and the others.
        faults: the devices whose training samples have faults, and the data as they have them; None without any.
        scoring: the loss that training minimises, and the metrics that evaluations measure.
        compressor, edge_compressor: apply the spec's `compression` and `edge_compression`.
        link_bytes: bytes of the tensors that links carry.
        fixed_point: the steps in which sums of updates are exact.
        samples: encoded samples of the clients that train here.
    """

    SAMPLE_BYTES = 32 * 2**20
    """Most bytes of encoded samples that are kept from visit to visit."""

    def __init__(self, spec: ExperimentSpec, data: Dataset) -> None:
        self.spec, self.data = spec, data
        found = with_checked_hooks(load_algorithm(spec.algorithm.name))
        self.algorithm: Algorithm = with_server_optimizers(found, spec)
        self.params: Record = self.algorithm.parse_params(spec.algorithm.params)
        self.local, self.local_params = load_local(spec)
        check_data(spec, data, self.algorithm, self.local)
        self.draws_freely = draws_freely(spec)
        self.wire_types = wire_types(
            broadcast=self.algorithm.broadcast,
            message=self.algorithm.message_type,
            update=self.algorithm.update,
            report=self.algorithm.report,
        )
        self.scoring = scoring_of(spec, data.target, data.reading.classes)
        try_scoring(self.scoring, data.train_y)
        self.population: Population = population(spec, data)
        how = spec.data.faults
        self.faults = None if how is None else DataFaults(spec, how, data, self.population)
        first = models.build_shapes(self.design)
        self._read(first)
        self._check_memory({})  # before a model is made, as `least_batch` and `flops` do
        if self.has_own_module:  # whose tensors may depend on values
            first = models.built(self.design, 0)
            self._read(first)
            models.check_finite(first, spec.model.name)
        if spec.batch_size < self.least_batch:
            cause = f"the batch-norm of {spec.model.name} trains on {self.least_batch} samples or more"
            raise BadInput(f"batch_size {spec.batch_size}: {cause}", field="batch_size")
        self.buffer_names = frozenset(models.buffer_names(first))
        self.norm_names = models.norm_names(first)
        check_dtypes(spec, self.algorithm, without(self.shapes, self.buffer_names))
        whole_names = self.buffer_names | self.frozen_names
        self.compressor = Compressor(spec.compression, whole_names)
        self.edge_compressor = Compressor(spec.edge_compression, whole_names)
        self.link_bytes = LinkBytes(self.algorithm, self.shapes)
        self.samples = SampleCache(self.SAMPLE_BYTES, data.encode)
        self._model_infos: dict[str, ModelInfo] = {}
        self.fixed_point = FixedPoint(
            largest_total(spec, self.population),
            self.buffer_names,
            parameter_bound=spec.sum_bounds.parameters,
            buffer_bound=spec.sum_bounds.buffers,
            weight_steps=spec.sync.devices.staleness.scale,
            fine_names=frozenset(name for name, tensor in self.shapes.items() if tensor.dtype == torch.float64),
            by_samples=spec.weights == "samples",
        )
        check_weights(spec, data, self.population)
        check_steps(spec, self.fixed_point)
        n_clients = len(self.population.seats) - len(self.population.held_out)
        ctx = self.ctx(phase="", round_no=1, n_clients=n_clients)
        self._check_memory(self.algorithm.footprint.gathers(ctx))
        self.personal_names = self.algorithm.personal(ctx.at(edge=0, seat=None if spec.client == "edge" else 0))

    def _read(self, first: nn.Module) -> None:
        """Reads shapes and names of the model's tensors."""
        self.shapes: TensorMap = {name: _shape(tensor) for name, tensor in models.own_state(first).items()}
        self.tied_names = models.tied_names(first)
        if self.spec.vectorised is not None:
            check_layers(first)
        self.trainable_names = tuple(models.trainable_names(first))
        self.frozen_names = frozenset(models.parameter_names(first)) - {*self.trainable_names}
        if not self.trainable_names:
            cause = f"{self.spec.model.name} has no parameter that training changes"
            raise BadInput(f"{cause}: {len(self.frozen_names)} are frozen (requires_grad_(False))", field="model.name")

    def _check_memory(self, gathered: Mapping[str, int]) -> None:
        n_summed = sum(tensor.numel() for name, tensor in self.shapes.items() if name not in self.frozen_names)
        check_memory(self.spec, self.algorithm, n_summed, gathered)

    @property
    def design(self) -> models.Design:
        wanted, data = self.spec.model, self.data
        params = json.dumps(wanted.params, sort_keys=True) if wanted.params else ""
        return models.Design(wanted.name, data.sample, data.target, wanted.projection, wanted.width, params)

    def _first_model(self) -> nn.Module:
        made: nn.Module = models.built(self.design, stream_seed(f"{self.spec.seed}|model"))
        return made

    @cached_property
    def device(self) -> ComputeDevice:
        """The compute device on which this process trains and evaluates; opened at the first use.

        Raises:
            BadInput: this machine has no device of the kind that the spec's `device` names.
        """
        return compute_device_of(self.spec.device)

    @cached_property
    def has_plugins(self) -> bool:
        """Whether the run calls code of a user."""
        return bool(packages_of(self.spec))

    @cached_property
    def has_own_module(self) -> bool:
        """Whether the model is a user's."""
        return models.MODEL_FACTORIES.package_of(self.spec.model.name) is not None

    @cached_property
    def _scratch(self) -> models.Pristine:
        made = self._first_model().to(self.device.device)
        channels_last(made)
        return models.Pristine(made, watched=self.has_plugins)

    @property
    def model(self) -> nn.Module:
        """The scratch model on the compute device, as it was made but for the values of its state.

        It is made at the first use, so a tier that only aggregates has none.
        """
        return self._scratch.restored()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Gives code of a user that draws at random in evaluations, as of a model or loss, the same draws in each."""
        if not self.draws_freely:
            yield
            return
        with seeded_generators(stream_seed(f"{self.spec.seed}|evaluation")):
            yield

    @cached_property
    def stack_trainer(self) -> StackTrainer:
        """Trains many devices at once, as the spec's `vectorised` says; made at the first use.

        Raises:
            BadInput: the spec has no `vectorised`.
        """
        if self.spec.vectorised is None:
            raise BadInput("devices are trained one after another", field="vectorised")
        return StackTrainer(self.model, self.spec.vectorised.width, self.data.target)

    @property
    def initial(self) -> TensorMap:
        """The state of the model with which the run begins; made anew at each access and not kept here."""
        return models.read_state(self._first_model())

    @cached_property
    def flops(self) -> int:
        """Operations of training the model on one sample; a mean if the objective is random."""
        flops = self.local.footprint.flops
        if flops is None:
            return training_flops(self.design)
        return step_flops(flops, type(self.local_params), canonical(self.local_params), self.design)

    @cached_property
    def units(self) -> Units:
        """The model's units, some of which form a sub-network; read at the first use.

        Raises:
            BadInput: the samples are no numbers, or the model has layers whose units are unknown.
        """
        if self.data.sample.dtype != "float32":
            cause = f"units are traced from numbers, the samples of {self.data.name} are {self.data.sample.what}"
            raise BadInput(cause, field="model.name")
        return units_of(self._first_model(), self.data.sample.shape)

    @property
    def clients_keep_state(self) -> bool:
        """Whether a client's visit starts from a state that an earlier one has left."""
        return self.algorithm.device_remembers or self.compressor.keeps_residual

    @cached_property
    def layers(self) -> tuple[models.Layer, ...]:
        """The model's layers with parameters, from input to output; found by a forward pass at the first use."""
        return models.layers_of(self.design)

    @cached_property
    def least_batch(self) -> int:
        """The smallest batch on which the model can train."""
        return models.least_batch(self.design)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The algorithm's phases: consecutive stretches of rounds."""
        return self.algorithm.phases(self.spec, self.params)

    def phase_of(self, round_no: int) -> Phase:
        """The phase of a 1-based round; rounds beyond the last phase belong to the last one."""
        end = 0
        for phase in self.phases:
            end += phase.num_rounds
            if round_no <= end:
                return phase
        return self.phases[-1]

    def seat(self, number: int, profile: str | None = None) -> Seat:
        """A seat by number; with `profile`, its agent's profile in place of the planned one."""
        planned = self.population.seat(number)
        return planned if profile is None else seated(planned, profile)

    def seat_in(self, number: int, round_no: int, profile: str | None = None) -> Seat:
        """A seat with the training samples that it has collected by a round; with all of them before round 1."""
        return collected(self.spec, self.seat(number, profile), round_no)

    @cached_property
    def groups_of_seat(self) -> Callable[[int], tuple[str, ...]]:
        """Returns the names of the groups of a seat's samples; none where each device draws samples by itself."""
        if self.data.groups is None or isinstance(self.spec.partition, SampledPartition):
            return lambda _: ()
        return lru_cache(maxsize=KEPT_SEATS)(lambda number: groups_of(self.data, self.population.seat(number)))

    def groups_of_edge(self, number: int) -> tuple[str, ...]:
        """The names of the groups of an edge's samples, if edges are the clients."""
        return groups_of(self.data, self.population.edges[number]) if self.spec.client == "edge" else ()

    @property
    def sample_bytes(self) -> int:
        """Bytes of one training sample as it travels, with its target."""
        x, y = self.data.train_x, self.data.train_y
        return int(x.nbytes // max(len(x), 1)) + int(y.nbytes // max(len(y), 1))

    def moved_bytes(self, number: int, task: Task) -> int:
        """Bytes of the task's samples that the seat must receive because it lacks them; an edge's worker has all."""
        seat = self.seat(number)
        if task.samples is None or seat.role == "worker":
            return 0
        return int((~np.isin(task.samples.numpy(), seat.train)).sum()) * self.sample_bytes

    def ctx(self, *, phase: str, round_no: int, n_clients: int, edge: int | None = None) -> Context:
        """A context for the hooks of this run."""
        known = self._model_infos.get(phase)  # the same in all of a phase
        ctx = Context(
            spec=self.spec,
            params=self.params,
            phase=phase,
            round_no=round_no,
            n_clients=n_clients,
            edge=edge,
            model=known or self._model_info,
            buffers=self.algorithm.buffers,
            total_samples=self.population.total_samples,
            total_clients=max(self.population.n_training, 1),
        )
        if known is not None:
            return ctx
        use = self.link_bytes.of_device(ctx.at(edge=0, seat=0), self.compressor)
        self._model_infos[phase] = replace(self._model_info, link_use=use)
        return ctx.at(model=self._model_infos[phase])

    @cached_property
    def _model_info(self) -> ModelInfo:
        """All that hooks may know of the model but its `link_use`, which is that of a phase."""
        return ModelInfo(
            trainable_names=self.trainable_names,
            frozen_names=self.frozen_names,
            buffer_names=self.buffer_names,
            norm_names=self.norm_names,
            sample=self.data.sample,
            target=self.data.target,
            n_bytes=n_bytes(self.shapes),
            flops=self.flops,
            least_batch=self.least_batch,
            passes=self.algorithm.footprint.passes(self.params),
            sample_bytes=self.sample_bytes,
            read_layers=lambda: self.layers,
            read_units=lambda: self.units,
        )


def _shape(tensor: Tensor) -> Tensor:
    """A tensor of the same shape and dtype that takes no memory."""
    return torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)


class ExperimentCache:
    """The most recently used experiments of a process, by spec.

    Args:
        data_dir: folder with `.npz` data sets.
        cache_dir: folder for unpacked arrays.
    """

    KEEP = 2
    """How many experiments are kept, whenever they were used."""
    MOST = 16
    """How many are kept of those that were used in the last `RECENT_S` seconds, as by runs that train side by side."""
    RECENT_S = 30.0

    def __init__(self, data_dir: Path | None, cache_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.data_dir, self.cache_dir, self.clock = data_dir, cache_dir, clock
        self._experiments: dict[str, tuple[Experiment, float]] = {}

    def of(self, spec: ExperimentSpec) -> Experiment:
        """The experiment of a spec; to be called from the thread that computes."""
        key = spec.digest()
        known = self._experiments.pop(key, None)
        if known is None:
            self._make_room()
        experiment = known[0] if known else Experiment(spec, self.data_of(spec))
        self._experiments[key] = experiment, self.clock()
        return experiment

    def _make_room(self) -> None:
        """Forgets the experiments that were used least recently, until one more may be kept."""
        while len(self._experiments) >= self.KEEP:
            oldest, (_, used_at) = next(iter(self._experiments.items()))
            if len(self._experiments) < self.MOST and self.clock() - used_at < self.RECENT_S:
                return
            del self._experiments[oldest]

    def data_of(self, spec: ExperimentSpec) -> Dataset:
        """The data set of a spec, memory-mapped."""
        return open_data(spec.data, data_dir=self.data_dir, cache_dir=self.cache_dir)
