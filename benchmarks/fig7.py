"""`python -m benchmarks.fig7 [PICTURE]`: Fig. 7 of the digital-twin paper (docs/scheduler.md), as table and picture.

Time until all users have trained, by samples a device: what the population of experiments/dtpfl_fig7.yaml takes on the
simulated clock with each schedule, and the closed form. Nobody trains: shares and what they cost are all that counts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from edge_server.clock import EdgeClock
from shared.costs import LinkUse
from shared.lab import Lab
from shared.messages import Outcome
from shared.policies import samples_due, schedule
from shared.spec import ExperimentSpec
from shared.spec_files import read_spec
from shared.training.data import Dataset

SPEC = Path(__file__).parent.parent / "experiments" / "dtpfl_fig7.yaml"
SCHEDULES = ("own_data", "free_compute", "finish_time")
SIZES = tuple(range(100, 1001, 100))


def spec_of(n_a_device: int, name: str, seed: int = 1) -> ExperimentSpec:
    """The experiment with so many samples a device and this schedule."""
    overrides = [f"data.n_train={100 * n_a_device}", f"schedule={name}", f"seed={seed}"]
    return read_spec(SPEC, overrides).resolved(n_devices=1, n_edges=1)


def lab_of(spec: ExperimentSpec) -> Lab:
    """Its lab, with as many samples as are asked for, of which only the number is known."""
    n = spec.data.n_train or 0
    x, y = np.broadcast_to(np.zeros((28, 28), np.uint8), (n, 28, 28)), np.arange(n, dtype=np.int64) % 10
    test_x, test_y = x[:1000], y[:1000]
    return Lab(spec, Dataset("mnist", x, y, test_x, test_y, None, None, 10, (1, 28, 28), "only counted"))


def simulated_s(lab: Lab) -> float:
    """Simulated seconds until all users have trained in the first round."""
    users = []
    for home in range(len(lab.members.homes)):
        ctx = lab.ctx(phase="train", round_no=1, n_clients=10, edge=home)
        clock = EdgeClock(lab, home)
        works = schedule(ctx, [clock.seat(seat.number) for seat in lab.members.at(home)])
        done = {
            s: Outcome[Any](seat=s, kind="train", n_trained=samples_due(ctx, w, clock.seat(s)))
            for s, w in works.items()
        }
        users.append(max(clock.cost(ctx, s, LinkUse(), outcome).simulated_s for s, outcome in done.items()))
    return max(users)


def closed_form_s(lab: Lab) -> float:
    """The paper's: max n_j / (100 c_j) over all devices; scheduled, sum n / (100 (sum c + 20)) of a user, at most."""
    users = [lab.members.at(home) for home in range(len(lab.members.homes))]
    if lab.spec.schedule == "own_data":
        return max(len(s.train) / s.profile.compute_sps for seats in users for s in seats if s.role == "train")
    return max(sum(len(s.train) for s in seats) / sum(s.profile.compute_sps for s in seats) for seats in users)


def one_sample_s(lab: Lab) -> float:
    """Seconds of one sample on the slowest worker."""
    return 1 / min(seat.profile.compute_sps for seat in lab.members.seats)


def rows() -> list[list[float]]:
    """By samples a device: for each schedule what the clock says, then both closed forms."""
    found = []
    for n in SIZES:
        labs = {name: lab_of(spec_of(n, name)) for name in SCHEDULES}
        clock = [simulated_s(labs[name]) for name in SCHEDULES]
        found.append([n, *clock, *(closed_form_s(labs[name]) for name in SCHEDULES[:2])])
    return found


def table(found: list[list[float]]) -> str:
    """The rows as a table."""
    head = ("samples a device", *(f"`{name}`, s" for name in SCHEDULES), "closed form own, s", "scheduled, s")
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += [f"| {row[0]:g} | " + " | ".join(f"{s:.3f}" for s in row[1:]) + " |" for row in found]
    return "\n".join(lines)


def draw(found: list[list[float]], path: Path) -> None:
    """Seconds against samples a device: the clock as marks, the closed forms as lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    columns = [list(column) for column in zip(*found, strict=True)]
    for label, column in zip(("every device its own, closed form", "scheduled, closed form"), columns[4:], strict=True):
        axes.plot(columns[0], column, color="0.6", linewidth=1, label=label, linestyle="-" if "own" in label else "--")
    for name, column, marker in zip(SCHEDULES, columns[1:4], "os+", strict=True):
        axes.plot(columns[0], column, marker, label=name, markersize=8 if marker == "+" else 5)
    axes.set(xlabel="samples a device", ylabel="simulated seconds until all users have trained", ylim=(0, None))
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    measured = rows()
    print(table(measured))
    if len(sys.argv) > 1:
        draw(measured, Path(sys.argv[1]))
