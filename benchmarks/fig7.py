"""`python -m benchmarks.fig7 [PICTURE]`: Fig. 7 of the digital-twin paper, as docs/scheduler-results.md has it.

Time until all users have trained, against the samples per device: for the population of experiments/dtpfl_fig7.yaml on
the simulated clock with each schedule, and in closed form. No device trains: only planned shares and costs matter.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.schedules import EdgeSimulation, counted_experiment
from shared.federation.experiment import Experiment
from shared.spec.experiment import ExperimentSpec
from strata.spec_files import read_spec

SPEC = Path(__file__).parent.parent / "experiments" / "dtpfl_fig7.yaml"
SCHEDULES = ("own_data", "free_compute", "finish_time")
SIZES = tuple(range(100, 1001, 100))


def spec_of(n_a_device: int, name: str, seed: int = 1) -> ExperimentSpec:
    """The spec of the experiment with `n_a_device` samples per device and the schedule `name`."""
    overrides = [f"data.n_train={100 * n_a_device}", f"schedule={name}", f"seed={seed}"]
    return read_spec(SPEC, overrides).resolved(n_devices=1, n_edges=1)


def simulated_s(experiment: Experiment) -> float:
    """Simulated seconds until all users have trained in the first round."""
    return max(EdgeSimulation(experiment, edge.number).round_s() for edge in experiment.population.edges)


def closed_form_s(experiment: Experiment) -> float:
    """The paper's closed form: the maximum of n_j / (100 c_j) over devices.

    With a schedule it is the maximum of sum n / (100 (sum c + 20)) over users.
    """
    users = [experiment.population.at(edge) for edge in range(len(experiment.population.edges))]
    if experiment.spec.schedule == "own_data":
        return max(len(s.train) / s.profile.compute_sps for seats in users for s in seats if s.role == "train")
    return max(sum(len(s.train) for s in seats) / sum(s.profile.compute_sps for s in seats) for seats in users)


def one_sample_s(experiment: Experiment) -> float:
    """Seconds of one sample on the slowest worker."""
    return 1 / min(seat.profile.compute_sps for seat in experiment.population.seats)


def rows() -> list[list[float]]:
    """For each number of samples per device, the simulated seconds of each schedule, then both closed forms."""
    found = []
    for n in SIZES:
        experiments = {name: counted_experiment(spec_of(n, name)) for name in SCHEDULES}
        clock = [simulated_s(experiments[name]) for name in SCHEDULES]
        found.append([n, *clock, *(closed_form_s(experiments[name]) for name in SCHEDULES[:2])])
    return found


def table(found: list[list[float]]) -> str:
    """The rows as a table."""
    head = ("samples a device", *(f"`{name}`, s" for name in SCHEDULES), "closed form own, s", "scheduled, s")
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += [f"| {row[0]:g} | " + " | ".join(f"{s:.3f}" for s in row[1:]) + " |" for row in found]
    return "\n".join(lines)


def draw(found: list[list[float]], limit_s: float, path: Path) -> None:
    """Draw two panels over the samples per device: simulated seconds on the closed forms, and their differences."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    whole, apart = figure.subplots(1, 2)
    n, own, papers, ours, own_closed, closed = (list(column) for column in zip(*found, strict=True))
    columns = ((own, own_closed, "o"), (papers, closed, "s"), (ours, closed, "+"))
    for line, style, label in ((own_closed, "-", "closed form, own data"), (closed, "--", "closed form, scheduled")):
        whole.plot(n, line, color="0.6", linewidth=1, linestyle=style, label=label)
    for name, (seconds, form, mark), colour in zip(SCHEDULES, columns, ("C0", "C1", "C2"), strict=True):
        face = "none" if mark == "s" else colour
        look = {"marker": mark, "linestyle": "", "color": colour, "markerfacecolor": face, "markersize": 7}
        whole.plot(n, seconds, label=name, **look)
        apart.plot(n, [1e3 * (s - f) for s, f in zip(seconds, form, strict=True)], label=name, **look)
    apart.axhline(1e3 * limit_s, color="0.6", linewidth=1, linestyle=":", label="one sample, slowest worker")
    whole.set(ylabel="simulated seconds until all have trained", ylim=(0, None))
    apart.set(ylabel="milliseconds above the closed form", ylim=(None, 1.6e3 * limit_s))
    for axes in (whole, apart):
        axes.set(xlabel="samples a device", xlim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize="small")
    with rc_context({"svg.hashsalt": SPEC.stem}):  # the same picture has the same bytes
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    measured = rows()
    print(table(measured))
    if len(sys.argv) > 1:
        draw(measured, one_sample_s(counted_experiment(spec_of(SIZES[0], SCHEDULES[0]))), Path(sys.argv[1]))
