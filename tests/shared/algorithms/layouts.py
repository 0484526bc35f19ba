"""Runs of a spec through three real tiers in this process, in several layouts, and their results."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2

from shared.core.tensor_records import TensorMap
from shared.federation.experiment import Experiment
from shared.federation.registry import load_algorithm
from shared.federation.spec_parser import parse_spec
from shared.run_records.rounds import RoundDetail
from shared.run_records.runs import RunInfo
from shared.service.protocol import SAID
from shared.spec.experiment import ExperimentSpec
from shared.training import models
from shared.training.data.open_data import open_data
from strata.checks.tried_rounds import TriedRounds
from tests.data_cache import data_cache
from tests.federation import Federation, PassOn, Tamper

_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Ended:
    """A run: its document, its rounds with a row for each visit, the experiment and the cloud's last state.

    `tape` has the messages to agents, of runs that `ran` made.
    """

    info: RunInfo
    rounds: list[RoundDetail]
    experiment: Experiment
    state: Any
    tape: Recorder = field(default_factory=lambda: Recorder())

    @property
    def model(self) -> TensorMap:
        """The global model."""
        ctx = self.experiment.ctx(phase="", round_no=self.info.rounds, n_clients=1)
        return self.experiment.algorithm.cloud.models(ctx, self.state)["global"]

    def figures(self, name: str) -> dict[int, list[Any]]:
        """Returns a figure of each visit that trained or collected, by seat, in order."""
        found: dict[int, list[Any]] = {}
        for detail in self.rounds:
            for row in detail.seats:
                if name in row.figures:
                    found.setdefault(row.seat, []).append(row.figures[name])
        return found

    def links(self) -> list[tuple[Any, ...]]:
        """Returns the simulated record: each visit's outcome, bytes, simulated seconds and energy."""
        return [
            (
                (detail.round_no, detail.simulated_s, row.seat, row.edge_round, row.wave, row.outcome, row.reason),
                (row.down_bytes, row.up_bytes),
                (row.down_s, row.compute_s, row.up_s, row.simulated_s, row.energy_j),
            )
            for detail in self.rounds
            for row in sorted(detail.seats, key=lambda row: (row.seat, row.edge_round, row.wave))
        ]


def experiment_of(spec: ExperimentSpec, data_dir: Path | None = None) -> Experiment:
    """Returns the experiment of a resolved spec."""
    return Experiment(spec, open_data(spec.data, data_dir=data_dir, cache_dir=data_cache()))


def resolved(**spec: Any) -> Experiment:
    """Returns the experiment of a spec without a run."""
    return experiment_of(ExperimentSpec.model_validate(spec).resolved(n_devices=1, n_edges=1))


def four() -> dict[str, Any]:
    """Returns a spec of two rounds of four devices at two edges, on handwritten digits."""
    data = {"name": "digits", "n_train": 240, "n_test": 60}
    return {"data": data, "num_devices": 4, "num_edges": 2, "num_rounds": 2, "lr": 0.1}


def federation(folder: Path, **layout: Any) -> Federation:
    """Returns a federation in a new folder."""
    return Federation(folder / f"federation-{next(_NUMBERS)}", **layout)


async def begun(fed: Federation, spec: dict[str, Any], *, restarted: bool) -> str:
    """Submits a run; `restarted` pauses it after its second round, restarts all tiers and resumes it."""
    if not restarted:
        return await fed.submit(spec)
    run_id = await fed.start_and_pause(spec, 2)
    await fed.restart(lambda: None)
    await fed.control(run_id, "resume")
    return run_id


async def ended(fed: Federation, run_id: str) -> Ended:
    """Waits for a run's end and reads its results."""
    info = await fed.finish(run_id)
    assert info.status == "completed", info.reason
    return await results_so_far(fed, run_id)


async def results_so_far(fed: Federation, run_id: str) -> Ended:
    """Returns the results of a run that has ended or is paused."""
    info = await fed.info(run_id)
    experiment = experiment_of(info.spec, fed.common.data_dir)
    found = await fed.apps["cloud"].state.cloud.repository.checkpoint(run_id, experiment)
    assert found is not None
    rounds = [await fed.round(run_id, round_no) for round_no in range(1, info.rounds + 1)]
    return Ended(info, rounds, experiment, found[0].state)


async def run(folder: Path, spec: dict[str, Any], *, tamper: Tamper | None = None, **layout: Any) -> Ended:
    """Run a spec in one layout of agents and edges."""
    async with federation(folder, **layout) as fed:
        fed.router.tamper = tamper
        return await ended(fed, await fed.submit(spec))


_RAN: dict[tuple[Any, ...], tuple[str, Ended]] = {}
"""Runs by what decides them, each with the test that made it."""


async def ran(spec: dict[str, Any], **layout: Any) -> Ended:
    """Run a spec in one layout once for all tests of this process, which only read what came of it.

    By default one agent hosts all devices, which costs least.
    """
    layout.setdefault("agent_devices", (spec.get("num_devices", 6),))
    key, test = _decides(spec, layout), os.environ["PYTEST_CURRENT_TEST"]
    if key not in _RAN:
        tape = Recorder()
        _RAN[key] = test, replace(await run(new_folder(), spec, tamper=tape, **layout), tape=tape)
        return _RAN[key][1]
    by, done = _RAN[key]
    assert by != test, "a test that compares a run with itself"
    return done


def new_folder() -> Path:
    """Returns a folder that is removed when this process ends."""
    return Path(tempfile.mkdtemp(dir=data_cache()))


def _decides(spec: dict[str, Any], layout: dict[str, Any]) -> tuple[Any, ...]:
    """Spec and layout, and the code behind the names of the algorithm and the model."""
    algorithm, model = (
        found["name"] if isinstance(found := spec.get(field, usual), dict) else found
        for field, usual in (("algorithm", "fedavg"), ("model", "mlp"))
    )
    code = id(load_algorithm(algorithm)), models.MODELS.get(model)
    return json.dumps(spec, sort_keys=True), json.dumps(layout, sort_keys=True), *code


class Tried(TriedRounds):
    """Rounds by the hooks of all tiers, without services."""

    @property
    def model(self) -> TensorMap:
        """The global model."""
        found = self.experiment
        ctx = found.ctx(phase=found.phases[-1].name, round_no=found.spec.num_rounds, n_clients=1)
        return found.algorithm.cloud.models(ctx, self.state)["global"]


def tried(**spec: Any) -> Tried:
    """Run a spec in which all devices answer by its hooks alone: the bits of `run` at a quarter of its cost."""
    parsed = parse_spec(spec)
    parsed = parsed.resolved(n_devices=parsed.num_devices or 1, n_edges=parsed.num_edges or 1)
    done = Tried(experiment_of(parsed), new_folder())
    done.run()
    return done


async def body_of(response: httpx2.Response) -> tuple[bytes, httpx2.Response]:
    """Returns the body of a response, and a response that can still be read."""
    body = await response.aread()
    return body, answer(response.status_code, body, dict(response.headers))


def answer(status: int, body: bytes, headers: dict[str, str] | None = None) -> httpx2.Response:
    """Returns a tier's response whose body has not been read yet, as from a socket."""
    return httpx2.Response(status, headers=SAID | (headers or {}), stream=httpx2.ByteStream(body))


def agents_of(request: httpx2.Request) -> bool:
    """Whether a request goes to an agent."""
    return (request.url.port or 0) >= 9200


class Recorder:
    """Records the messages between edges and agents."""

    def __init__(self) -> None:
        self.orders: list[tuple[str, bytes, int]] = []

    async def __call__(self, request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if not agents_of(request) or request.url.path not in ("/visits", "/uploads"):
            return await pass_on()
        body = await request.aread()
        answered, response = await body_of(await pass_on())
        self.orders.append((request.url.path, body, len(answered)))
        return response

    def of(self, path: str) -> list[bytes]:
        """Returns the bodies of the orders of a kind."""
        return [body for where, body, _ in self.orders if where == path]
