"""`python -m benchmarks.many_edges [PICTURE]`: what a round costs the cloud, with 10 to 1,000 edges.

The cloud and Redis are those of the product. The edges are pretended: each registers, sends heartbeats, and answers
each request with the answer of a real edge, which was recorded in a run of all tiers before (docs/many-edges.md).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.data import make_images
from benchmarks.federation import NEVER, ROUND_S, federation
from benchmarks.loops import LR
from benchmarks.memory import peak_rss_bytes
from benchmarks.processes import cpu_s
from benchmarks.profiled.stages import FOLDER as STAGES_FOLDER
from benchmarks.profiled.stages import read_spans
from benchmarks.replayed import recording_edge
from benchmarks.replayed.answers import Recorded
from benchmarks.replayed.edges import PretendedEdges
from shared.federation.experiment import Experiment, ExperimentCache
from shared.federation.spec_parser import parse_spec
from strata.api.client import Client
from strata.launcher.environment import Modules
from strata.launcher.redis_server import start_redis
from strata.launcher.topology import Topology

DATA, N_TRAIN, SAMPLES, DEVICES = "mnist", 10_000, 20, 10
"""Each edge has ten devices, and each of these 20 images."""
EDGES = (10, 100, 1000)
ROUNDS, BEATS = 2, 500
JOIN_S = 1200.0
"""Longest wait until all edges have registered."""


@dataclass(frozen=True)
class Case:
    """A model, how edges send what they add up, and the most edges for which this machine's memory is enough."""

    model: str
    sent: str
    fields: Mapping[str, Any]
    most: int = EDGES[-1]

    @property
    def name(self) -> str:
        """How it is called in tables."""
        return f"{self.model}, {self.sent}"


CASES = (
    Case("mlp", "sums", {}),
    Case("mlp", "means", {"edge_upload": "mean"}),
    Case("mlp", "int8", {"edge_compression": {"up": "int8", "down": "int8"}}),
    Case("cnn_mnist", "sums", {}, most=100),
)


@dataclass(frozen=True)
class Figures:
    """What was measured with so many edges, a round unless another unit is named.

    Attributes:
        unit: CPU seconds of `import torch` when it was measured.
        beat_cpu, beat_bytes: CPU seconds of the cloud, and bytes of request and answer, a heartbeat of an edge.
        cpu, redis_cpu: CPU seconds of the cloud and of Redis.
        wall: seconds.
        up, down: bytes on all links between cloud and edges.
        memory: largest resident memory of the cloud, in bytes.
        stages: CPU seconds of the cloud by stage.
        lost: edges that were given up, as on a machine that is too slow.
    """

    unit: float
    beat_cpu: float
    beat_bytes: float
    cpu: float
    redis_cpu: float
    wall: float
    up: float
    down: float
    memory: int
    stages: Mapping[str, float]
    lost: float


class CloudAlone(Topology):
    """A local topology without edges and agents of its own."""

    def _start(self) -> None:
        self.prepare()
        self._redis = start_redis(self.folder / "redis", fsync="no")
        self._start_cloud()


def spec_of(case: Case, n_edges: int) -> dict[str, Any]:
    """The spec of a run with so many edges."""
    return {
        "data": DATA,
        "model": case.model,
        "partition": {"name": "sampled", "samples": SAMPLES},
        "association": "balanced",
        "num_edges": n_edges,
        "num_devices": DEVICES * n_edges,
        "num_rounds": NEVER,
        "eval_every": NEVER,
        "batch_size": 32,
        "lr": LR,
        **case.fields,
    }


# ---- the three tiers


@dataclass(frozen=True)
class Recording:
    """A round of all tiers: an edge's answer, and CPU seconds of an edge and of an agent, a round."""

    body: Path
    made: Experiment
    tiers: Mapping[str, float]


def record(case: Case, folder: Path, experiments: ExperimentCache) -> Recording:
    """Train with two real edges; each has its own agent's devices."""
    answers = folder / "answers"
    answers.mkdir(parents=True)
    modules, env = Modules(edge="benchmarks.replayed.recording_edge"), {recording_edge.FOLDER: str(answers)}
    with federation(folder, spec_of(case, 2), modules=modules, env=env, data=experiments.data_dir) as ours:
        before, first = _by_tier(ours.topology), ours.n_rounds()
        for _ in range(ROUNDS):
            ours.round()
        trained = ours.n_rounds() - first
        tiers = {tier: (used - before[tier]) / trained / 2 for tier, used in _by_tier(ours.topology).items()}
        made = experiments.of(ours.client.run("latest").spec)
    return Recording(next(answers.glob("0-*[0-9]")), made, tiers)


def _by_tier(topology: Topology) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for name, process in topology.processes.items():
        found[name.partition("-")[0]] += cpu_s(process.pid)
    return found


# ---- the cloud alone


def measure(case: Case, n: int, recording: Recording, folder: Path, experiments: ExperimentCache) -> Figures:
    """Rounds of a cloud with so many pretended edges."""
    stages = folder / "stages"
    stages.mkdir(parents=True)
    wanted = experiments.of(parse_spec(spec_of(case, n)).resolved(n_devices=DEVICES * n, n_edges=n))
    with _cloud(folder, stages, experiments.data_dir) as topology:
        port, pid, redis = topology.ports["cloud"], topology.processes["cloud"].pid, topology.redis.pid
        edges = PretendedEdges(n, DEVICES, port, topology.tier_token, Recorded(recording.body, recording.made, wanted))
        with edges, Client(topology.url, timeout_s=ROUND_S) as client:
            _await_edges(client, topology, edges)
            beat_s, beat_bytes = _beats(edges, pid)
            run = client.create_run(spec_of(case, n)).run
            marks = [
                (time.monotonic(), cpu_s(pid), cpu_s(redis)) for _ in _commits(client, run, ROUNDS + 1, topology, edges)
            ]
            client.stop(run)
            rounds = client.rounds(run).rounds[1 : ROUNDS + 1]
            memory = peak_rss_bytes(pid)
    lost = sum(len(one.failures) for one in rounds) / ROUNDS
    wall, cpu, redis_cpu = ((last - first) / ROUNDS for first, last in zip(marks[0], marks[-1], strict=True))
    by_stage: dict[str, float] = defaultdict(float)
    for span in read_spans(stages, "cloud_server")[0]:
        if marks[0][0] <= span.began <= marks[-1][0] and not span.waits:
            by_stage[span.stage.strip()] += span.seconds / ROUNDS
    up, down = (sum(getattr(one, f"edge_bytes_{way}") for one in rounds) / ROUNDS for way in ("up", "down"))
    return Figures(import_s(), beat_s, beat_bytes, cpu, redis_cpu, wall, up, down, memory, dict(by_stage), lost)


def _beats(edges: PretendedEdges, pid: int) -> tuple[float, float]:
    """CPU seconds of the cloud, and bytes of request and answer, a heartbeat."""
    cpu, n_bytes = cpu_s(pid), edges.heartbeat_bytes
    edges.beat(BEATS)
    return (cpu_s(pid) - cpu) / BEATS, (edges.heartbeat_bytes - n_bytes) / BEATS


@contextmanager
def _cloud(folder: Path, stages: Path, data: Path | None) -> Iterator[Topology]:
    env = {
        "STRATA_DATA_DIR": str(data),
        "STRATA_CACHE_DIR": str(folder / "cache"),
        "CLOUD_SETTLE_S": "0",
        "CLOUD_TTL_S": "3600",  # while a round is measured, no heartbeats are
        STAGES_FOLDER: str(stages),
    }
    with CloudAlone(runs_dir=folder / "runs", modules=Modules(cloud="benchmarks.profiled.cloud"), env=env) as topology:
        yield topology


def _await_edges(client: Client, topology: Topology, edges: PretendedEdges) -> None:
    """Wait until the cloud has heard every edge and its agent.

    Raises:
        RuntimeError: an edge failed, or it took too long.
    """
    ends = time.monotonic() + JOIN_S
    while not edges.joined:
        _check(topology, edges)
        if time.monotonic() > ends:
            raise RuntimeError(f"edges join for more than {JOIN_S:g} s; {edges.refusals[-3:]}")
        time.sleep(0.2)
    found = client.topology()
    if not len(found.edges) == len(found.agents) == edges.n:
        raise RuntimeError(f"{len(found.edges)} edges and {len(found.agents)} agents, not {edges.n}")


def _commits(client: Client, run: str, n: int, topology: Topology, edges: PretendedEdges) -> Iterator[None]:
    """Yields at each of the first commits of a run."""
    found = 0
    for event in client.events(run):
        _check(topology, edges)
        if event is not None and event.kind == "run.status" and event.data["status"] == "failed":
            raise RuntimeError(f"the run failed: {event.data['reason']}")
        if event is not None and event.kind == "round.committed":
            yield
            found += 1
        if found == n:
            return


def _check(topology: Topology, edges: PretendedEdges) -> None:
    topology.check()
    if edges.failed is not None:
        raise RuntimeError(f"the pretended edges ended: {edges.failed!r}")


# ---- what is printed


def import_s() -> float:
    """CPU seconds of `import torch` in a new process, the least of three: the unit in which machines compare."""
    found = []
    for _ in range(3):
        before = os.times()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        after = os.times()
        found.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(found)


Found = Mapping[str, Mapping[int, Figures]]


def table(found: Found) -> str:
    """The figures by case and number of edges."""
    lines = [
        "| model, up | edges | CPU s a round | in imports | CPU ms an edge | Redis CPU s | wall s | MB up | MB down "
        "| peak GB | a heartbeat: CPU ms | bytes | edges given up |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, by_edges in found.items():
        for n, one in by_edges.items():
            cells = f"{one.cpu:.2f} | {one.cpu / one.unit:.2f} | {1e3 * one.cpu / n:.1f} | {one.redis_cpu:.2f}"
            cells += f" | {one.wall:.2f} | {one.up / 1e6:.2f} | {one.down / 1e6:.2f} | {one.memory / 1e9:.2f}"
            lines.append(
                f"| {name} | {n:,} | {cells} | {1e3 * one.beat_cpu:.2f} | {one.beat_bytes:,.0f} | {one.lost:g} |"
            )
    return "\n".join(lines)


def stage_table(found: Found) -> str:
    """CPU milliseconds of the cloud by stage, an edge and round."""
    lines = ["| model, up | edges | " + " | ".join(STAGES) + " | the rest |", "|---|" + "---|" * (len(STAGES) + 2)]
    for name, by_edges in found.items():
        for n, one in by_edges.items():
            rest = one.cpu - sum(one.stages.values())
            cells = [f"{1e3 * one.stages.get(stage, 0.0) / n:.2f}" for stage in STAGES]
            lines.append(f"| {name} | {n:,} | {' | '.join(cells)} | {1e3 * rest / n:.2f} |")
    return "\n".join(lines)


STAGES = (
    *("make orders", "encode", "hash bodies", "decode", "check sums", "add sums", "aggregate"),
    *("record of the round", "write files", "results folder"),
)


def draw(found: Found, path: Path) -> None:
    """Draw CPU seconds, memory and bytes a round over the number of edges, all logarithmic."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    kinds = (("CPU seconds of the cloud, a round", "cpu", 1.0), ("peak memory of the cloud, GB", "memory", 1e9))
    panels = figure.subplots(1, 3)
    for axes, (what, field, unit) in zip(panels, (*kinds, ("MB up, a round", "up", 1e6)), strict=True):
        for colour, (name, by_edges) in enumerate(found.items()):
            values = [getattr(one, field) / unit for one in by_edges.values()]
            axes.plot(list(by_edges), values, color=f"C{colour}", marker="o", label=name)
        axes.set(xscale="log", yscale="log", xlabel="edges", title=what)
        axes.title.set_fontsize(10)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize=8)
    with rc_context({"svg.hashsalt": "edges"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def measure_all(cases: Sequence[Case], edges: Sequence[int], found: dict[str, dict[int, Figures]]) -> Iterator[str]:
    """Adds figures to those that are known; yields each in words, and what the tiers of the recorded runs took."""
    with tempfile.TemporaryDirectory(prefix="strata-bench-") as name:
        folder = Path(name)
        make_images(folder / "data", DATA, N_TRAIN)
        experiments = ExperimentCache(folder / "data", folder / "cache")
        for case in cases:
            home = folder / case.name.replace(", ", "-")
            recording = record(case, home / "real", experiments)
            took = ", ".join(f"{tier} {seconds:.3f}" for tier, seconds in recording.tiers.items())
            yield f"{case.name}: CPU s a round of a real run, by half of the tier's processes: {took}"
            for n in (n for n in edges if n <= case.most):
                one = found.setdefault(case.name, {})[n] = measure(case, n, recording, home / str(n), experiments)
                yield f"{case.name}, {n} edges: {one.cpu:.2f} CPU s a round, {one.cpu / one.unit:.2f} imports of torch"


def known_figures(file: Path | None) -> dict[str, dict[int, Figures]]:
    """The figures of a file; none without one."""
    if file is None or not file.exists():
        return {}
    stored = json.loads(file.read_text(encoding="utf-8"))
    return {name: {int(n): Figures(**one) for n, one in by_edges.items()} for name, by_edges in stored.items()}


def main() -> None:
    """Measure, print tables in Markdown, and draw."""
    parser = argparse.ArgumentParser(prog="benchmarks.many_edges", description=__doc__.splitlines()[0])
    parser.add_argument("picture", nargs="?", type=Path)
    parser.add_argument("--edges", type=lambda text: tuple(map(int, text.split(","))), default=EDGES)
    parser.add_argument("--cases", type=lambda text: text.split(":"), default=[case.name for case in CASES])
    parser.add_argument("--figures", type=Path, help="a file to which figures are added; tables and picture show all")
    chosen = parser.parse_args()
    found = known_figures(chosen.figures)
    for words in measure_all([case for case in CASES if case.name in chosen.cases], chosen.edges, found):
        print(f"# {words}", file=sys.stderr, flush=True)
        if chosen.figures is not None:
            stored = {name: {n: asdict(one) for n, one in by_edges.items()} for name, by_edges in found.items()}
            chosen.figures.write_text(json.dumps(stored, indent=1), encoding="utf-8")
    print(f"{table(found)}\n\n{stage_table(found)}")
    if chosen.picture is not None:
        draw(found, chosen.picture)


if __name__ == "__main__":
    main()
