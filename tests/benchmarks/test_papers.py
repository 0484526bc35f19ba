"""Pages about papers: their claims by one rule, what runs within the budget, and that each shows what was measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from scipy import stats

from benchmarks.papers import __main__ as command
from benchmarks.papers import fedser, gathered, measured, page
from benchmarks.papers.claims import Claim, Interval, interval, verdict
from benchmarks.papers.gathered import NAMES, page_of
from benchmarks.papers.measured import Kept, Measured, Trial, measure
from benchmarks.papers.page import CLAIMS, DOCS, NOT_RUN, Column, Curves, Page, Table
from benchmarks.papers.plan import lines, plan
from benchmarks.papers.settings import Setting, fingerprint
from shared.core.errors import NotFound
from shared.core.scores import Spread
from shared.run_records.rounds import Evaluation
from tests.strata.samples import a_round, a_run, put_run

OURS = Setting("ours", "digits_fedprox", ("num_rounds=4",), what="FedProx")
OTHER = Setting("other", "digits_fedprox", ("num_rounds=4", "algorithm=fedavg"), what="FedAvg")
LONG = Setting("long", "digits_fedprox", ("num_rounds=400",), seeds=(1,))


def last(run: Measured) -> float | None:
    value = run.last("global")
    return None if value is None else 100 * value


CLAIM = Claim("FedProx is better", "+4 (table 1)", 4.0, "ours", "other", last)


def a_page(*settings: Setting) -> Page:
    return Page(
        "trial",
        ("It is better.",),
        settings or (OURS, OTHER),
        (CLAIM,),
        {"accuracy": Table(("ours", "other"), (Column("accuracy, %", last),), paper={"ours": "90.0"})},
        {"trial_curves": Curves("Accuracy", (("ours", "global", "FedProx"),))},
    )


def a_measured(setting: Setting, seed: int, *values: float | None, seconds: float = 8.0) -> Measured:
    return Measured(
        setting=setting.key,
        seed=seed,
        fingerprint=fingerprint(setting.spec_of(seed)),
        model_sha256="0" * 64,
        seconds=seconds,
        series={"global": values, "n_used": (10.0,) * len(values), "device_bytes_up": (5.0,) * len(values)},
        final={},
    )


# ---- claims


@pytest.mark.parametrize("ours", [[0.9, 0.91, 0.93], [0.5, 0.52], [1.0, 3.0, 2.0, 8.0]])
def test_the_interval_is_that_of_scipys_paired_test(ours: list[float]) -> None:
    other = [value / 2 + 0.1 for value in ours]
    found = interval([a - b for a, b in zip(ours, other, strict=True)])
    limits = stats.ttest_rel(ours, other).confidence_interval(0.95)
    assert (found.mean - found.half_width, found.mean + found.half_width) == pytest.approx(tuple(limits), rel=1e-9)


@pytest.mark.parametrize(
    ("mean", "half_width", "gain", "expected"),
    [
        (5.0, 1.0, 7.5, "shown"),
        (1.0, 0.9, 7.5, "shown"),
        (1.0, 1.1, 7.5, "refuted"),
        (1.0, 2.6, 7.5, "refuted"),
        (1.0, 2.8, 7.5, "undecided"),
        (-3.0, 1.0, 7.5, "refuted"),
        (-3.0, 1.0, -4.0, "shown"),
        (-1.0, 1.5, -4.0, "undecided"),
        (1.0, 0.5, -4.0, "refuted"),
        (50.0, float("inf"), 7.5, "undecided"),
    ],
)
def test_a_verdict_follows_from_the_interval_and_the_claimed_gain(
    mean: float, half_width: float, gain: float, expected: str
) -> None:
    assert verdict(Interval(mean, half_width, 3), gain) == expected


def test_differences_are_paired_by_seed_and_missing_values_left_out() -> None:
    ours = [a_measured(OURS, seed, value) for seed, value in ((3, 0.9), (1, 0.8), (2, None))]
    other = [a_measured(OTHER, seed, value) for seed, value in ((1, 0.7), (2, 0.1), (3, 0.5))]
    found, said = CLAIM.decide([*ours, *other])
    assert found is not None
    assert (found.n, said) == (2, "undecided")
    assert found.mean == pytest.approx((40 + 10) / 2)
    assert CLAIM.decide(ours) == (None, "not run")


def test_a_gain_that_is_shown_but_small_is_called_so() -> None:
    def cells(*gains: float) -> tuple[str, str]:
        runs = [a_measured(OURS, seed, 0.5 + gain) for seed, gain in enumerate(gains, start=1)]
        return CLAIM.cells([*runs, *(a_measured(OTHER, seed, 0.5) for seed in (1, 2, 3))])

    assert cells(0.01, 0.011, 0.012) == ("+1.10 ± 0.25 points, 3 seeds", "**shown**, but less than half of the gain")
    assert cells(0.04, 0.041, 0.042) == ("+4.10 ± 0.25 points, 3 seeds", "**shown**")
    assert cells(0.04) == ("+4.00 points, 1 seed", "**undecided**")


# ---- plans


def test_the_most_valuable_runs_come_first_and_what_does_not_fit_is_named() -> None:
    kept = Kept(runs=(a_measured(OURS, 1, *[0.5] * 4, seconds=8.0),))
    for setting in (OTHER, LONG):
        fit = fingerprint(setting.spec_of(1))
        kept = kept.with_trial(Trial(setting=setting.key, fingerprint=fit, seconds_a_round=1.0))
    shown = a_page(LONG, OURS, OTHER)
    steps = plan(shown, kept, ["small"], 8.0 + 2 * 4 * 2.0 + 3 * 4 * 1.0)
    assert [(step.setting.key, step.seeds, step.seconds, step.fits) for step in steps] == [
        ("long", (1,), 400.0, False),
        ("ours", (2, 3), 16.0, True),
        ("other", (1, 2, 3), 12.0, True),
    ]
    text = "\n".join(lines(shown, steps, 36.0))
    assert "not run  long: 1 x 400 rounds, 1 s a round" in text
    assert "run      ours: 2 x 4 rounds, 2 s a round" in text
    assert [step.fits for step in plan(shown, kept, ["small"], 8.0 + 15.9)] == [False, False, True]
    assert [step.fits for step in plan(shown, Kept(), ["small"], 1e9)] == [False] * 3  # no trial yet
    assert plan(shown, kept, ["paper"], 1e9) == []


def test_a_changed_setting_has_not_run() -> None:
    run = a_measured(OURS, 1, 0.5)
    changed = Setting("ours", "digits_fedprox", ("num_rounds=5",))
    assert a_page().known(Kept(runs=(run,))) == [run]
    assert a_page(changed).known(Kept(runs=(run,))) == []


# ---- what is measured


def test_series_are_read_from_a_results_folder_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "KEPT", tmp_path)
    scores = {"global": Evaluation(n=10, accuracy=1 / 3, loss=1.0)}
    rounds = [a_round(1, clients={"own": Spread.of([0.2, 0.6])}, evaluation=None), a_round(2, evaluation=scores)]
    info = a_run(run="r1", final=scores, wall_s=12.34)
    put_run(tmp_path / "r1", rounds, info)
    found = measure(tmp_path / "r1", "ours", "f", lambda _, rows: {"rows": [float(row.round_no) for row in rows]})
    assert (found.series["global"], found.series["own"]) == ((None, 0.333333), (0.4, None))
    assert (found.series["rows"], found.final["global"], found.seconds) == ((1.0, 2.0), 1 / 3, 12.3)
    assert (found.last("global"), found.at("own", 1), found.at("own", 9)) == (0.333333, 0.4, None)
    assert (found.rounds_to("global", 0.3), found.rounds_to("global", 0.4)) == (2, None)
    assert found.total("rows") == 3.0
    again = found.replace(seconds=1.0)
    kept = Kept().with_run(found).with_run(again)
    kept.write("trial")
    assert Kept.read("trial") == kept == Kept(runs=(again,))
    assert Kept.read("other") == Kept()


# ---- pages


def test_a_page_shows_means_verdicts_and_what_has_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "DOCS", tmp_path)
    shown = a_page()
    shown.path.parent.mkdir()
    places = ("accuracy", "trial_curves", CLAIMS, NOT_RUN)
    shown.path.write_text("# Trial\n" + "".join(f"<!-- measured: {at} -->\n<!-- end of {at} -->\n" for at in places))
    runs = [a_measured(OURS, seed, 0.5, value) for seed, value in ((1, 0.9), (2, 0.92), (3, 0.91))]
    kept = Kept(runs=(*runs, *(a_measured(OTHER, seed, 0.5, 0.8) for seed in (1, 2))))
    text = shown.text(kept)
    assert "| FedProx | 91.0 ± 1.0 | 3 | 90.0 |" in text
    assert "| FedAvg | 80.0 ± 0.0 | 2 |  |" in text
    assert (
        "| FedProx is better | +4 (table 1) | +11.00 ± 12.71 points, 2 seeds | **undecided** | FedProx against FedAvg |"
        in text
    )
    assert "- FedAvg, seed 3: `strata sweep digits_fedprox num_rounds=4" in text
    (_, picture), *_ = shown.pictures(kept)
    (line,) = picture.panels[0].series  # type: ignore[union-attr]
    assert (line.x, line.y, line.low, line.high) == ((1.0, 2.0), (0.5, pytest.approx(0.91)), (0.5, 0.9), (0.5, 0.92))
    shown.path.write_text("<!-- measured: accuracy -->\n<!-- end of accuracy -->\n")
    with pytest.raises(NotFound, match="has places for"):
        shown.text(kept)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_of_the_documentation_is_what_its_kept_runs_give(name: str) -> None:
    shown = page_of(name)
    keys = [setting.key for setting in shown.settings]
    assert len({*keys}) == len(keys)
    named = [key for table in shown.tables.values() for key in table.settings]
    named += [key for claim in shown.claims for key in (claim.ours, claim.other)]
    named += [key for curves in shown.curves.values() for key, _, _ in curves.lines]
    assert {*named} <= {*keys}
    assert shown.path.read_text(encoding="utf-8") == shown.text(Kept.read(name))
    for path, _ in shown.pictures(Kept.read(name)):
        assert path.exists()


def test_the_list_of_verdicts_is_that_of_the_pages() -> None:
    assert (DOCS / "papers.md").read_text(encoding="utf-8") == gathered.gathered()


@pytest.mark.e2e
def test_a_page_is_run_written_and_then_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ("num_rounds=2", "num_devices=4", "num_edges=2", "data.n_train=200", "data.n_test=50")
    tiny = [
        Setting(each.key, each.spec, (*each.changes[1:], *changes), (1, 2), what=each.what) for each in (OURS, OTHER)
    ]
    shown, docs = a_page(*tiny), tmp_path / "docs"
    for module, name, value in (
        (measured, "KEPT", tmp_path),
        (page, "DOCS", docs),
        (command, "DOCS", docs),
        (command, "page_of", lambda _: shown),
        (command, "gathered", lambda: "verdicts\n"),
    ):
        monkeypatch.setattr(module, name, value)
    shown.path.parent.mkdir(parents=True)
    places = ("accuracy", "trial_curves", CLAIMS, NOT_RUN)
    shown.path.write_text("".join(f"<!-- measured: {at} -->\n<!-- end of {at} -->\n" for at in places))
    arguments = ["benchmarks.papers", "bofl", "--agents", "1", "--runs-dir", str(tmp_path / "runs")]
    monkeypatch.setattr(sys, "argv", arguments)
    command.main()
    assert "2 x 2 rounds" in capsys.readouterr().out
    assert {(run.setting, run.seed) for run in Kept.read("trial").runs} == {
        (key, seed) for key in ("ours", "other") for seed in (1, 2)
    }
    text = shown.path.read_text()
    assert "Everything above has run." in text
    assert "points, 2 seeds" in text
    assert (docs / "algorithms" / "trial_curves.svg").exists()
    before = Kept.read("trial")
    command.main()
    assert "all have run" in capsys.readouterr().out
    assert (Kept.read("trial"), shown.path.read_text()) == (before, text)


def test_fedsers_rates_are_those_that_its_tuning_runs_found_best() -> None:
    runs = fedser.PAGE.known(Kept.read("fedser"))
    found = {
        (method, lr): fedser.accuracy(run)
        for run in runs
        for method in fedser.METHODS
        for lr in fedser.RATES
        if run.setting == f"tune_{method}_{lr}"
    }
    assert len(found) == len(fedser.METHODS) * len(fedser.RATES)
    for method in fedser.METHODS:
        assert fedser.BEST[method] == max(fedser.RATES, key=lambda lr: found[method, lr] or 0)
    best = max(fedser.MUS, key=lambda mu: found[f"fedser_{mu}", fedser.BEST[f"fedser_{mu}"]] or 0)
    assert best == fedser.BEST_MU
