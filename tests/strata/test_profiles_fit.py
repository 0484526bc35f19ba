"""Mixtures fitted to measured devices: known parameters, figures in plain numpy, and a spec that draws the same."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from shared.core import parsing
from shared.core.errors import BadInput
from shared.core.randomness import stream_seed
from shared.federation.spec_parser import parse_spec
from shared.plots.picture import Lines
from shared.results.matplotlib_figures import figure_of
from shared.simulation import LogNormal, profiles_of
from shared.simulation.device_file import devices_in
from shared.simulation.device_specs import ProfileSpec
from strata.measured.fit import FITTED, LEAST_VARIANCE, Fit, default_columns, fits, log_likelihood, yaml_of
from strata.measured.fit_picture import LABELS, picture_of
from tests.strata.conftest import Strata

SHARES, MEDIANS, SIGMAS = (0.65, 0.35), (180.0, 1200.0), (0.45, 0.3)


def drawn(n: int, seed: int = 0) -> list[float]:
    """Returns draws of the known mixture, each from its part."""
    rng = np.random.default_rng(seed)
    part = rng.choice(2, size=n, p=SHARES)
    return [float(f"{value:.6g}") for value in rng.lognormal(np.log(MEDIANS)[part], np.array(SIGMAS)[part])]


def fitted(values: list[float], n_parts: int | None = None, column: str = "compute_sps") -> Fit:
    (found,) = fits(devices_in("\n".join([column, *map(repr, values)]), len(values)), [column], n_parts, seed=0)
    return found


@pytest.fixture(scope="module")
def known() -> Fit:
    return fitted(drawn(4000))


def test_a_fit_recovers_the_parameters_of_a_known_mixture(known: Fit) -> None:
    """Within three standard errors of a mixture of 4,000 values, where the parts were known."""
    parts = known.found.parts
    assert len(parts) == 2, "the criterion chooses as many parts as there are"
    assert known.converged
    for part, share, median, sigma in zip(parts, SHARES, MEDIANS, SIGMAS, strict=True):
        n = 4000 * share
        assert part.share == pytest.approx(share, abs=3 * math.sqrt(share * (1 - share) / 4000))
        assert math.log(part.median) == pytest.approx(math.log(median), abs=3 * sigma / math.sqrt(n))
        assert part.sigma == pytest.approx(sigma, abs=3 * sigma / math.sqrt(2 * n))
    assert known.gap < stats.kstwo.ppf(0.99, 4000)


def test_the_log_likelihood_and_the_criterion_are_those_of_plain_numpy(known: Fit) -> None:
    x, density = known.values, np.zeros(4000)
    for part in known.found.parts:
        z = (np.log(x) - np.log(part.median)) / part.sigma
        density += part.share * np.exp(-(z**2) / 2) / (x * part.sigma * np.sqrt(2 * np.pi))
    assert known.log_likelihood == pytest.approx(np.log(density).sum(), rel=1e-12)
    assert known.bic == pytest.approx(5 * np.log(4000) - 2 * np.log(density).sum(), rel=1e-12)
    assert known.tried == {1: known.tried[1], 2: known.bic, 3: known.tried[3], 4: known.tried[4]}
    assert min(known.tried.values()) == known.bic
    better = [share * (1 + change) for share, change in zip(SHARES, (0.05, -0.05 * 13 / 7), strict=True)]
    parts = [part.replace(share=share) for part, share in zip(known.found.parts, better, strict=True)]
    assert log_likelihood(LogNormal(parts=tuple(parts)), x) < known.log_likelihood, "it is a maximum"


def test_one_part_has_the_closed_form_of_maximum_likelihood() -> None:
    values = drawn(50)
    found = fitted(values, n_parts=1).found
    logs = np.log(values)
    assert found.median == pytest.approx(math.exp(logs.mean()), rel=1e-5)
    assert found.sigma == pytest.approx(math.sqrt(logs.var() + LEAST_VARIANCE), rel=1e-5)
    assert found.parts == ()


def test_equal_values_make_a_narrow_part_and_no_failure() -> None:
    found = fitted([5.0] * 30 + [500.0] * 10).found
    assert [(part.share, part.median, part.sigma) for part in found.parts] == [(0.75, 5, 0.001), (0.25, 500, 0.001)]


def test_the_printed_spec_draws_devices_of_the_fitted_distribution(known: Fit) -> None:
    devices = parse_spec(_loaded(yaml_of([known]))).devices
    assert devices.profile is not None
    assert devices.profile.compute_sps == known.found
    seeds = profiles_of(devices, 3000, 3000, lambda member: lambda purpose: stream_seed(f"{member}|{purpose}"))
    speeds = [seeds(number).compute_sps for number in range(3000)]
    assert stats.ks_2samp(speeds, known.values).pvalue > 1e-3


def _loaded(text: str) -> dict[str, object]:
    found: dict[str, object] = parsing.load(text, "the fit")
    return found


def test_each_column_that_can_be_fitted_takes_a_distribution_and_has_a_label() -> None:
    for column in FITTED:
        assert ProfileSpec.model_validate({column: {"name": "lognormal", "median": 1, "sigma": 1}})
    assert LABELS.keys() == {*FITTED}
    assert default_columns(devices_in("drop_rate,up_bps,availability\n0,1,always")) == ["up_bps"]


@pytest.mark.parametrize(
    ("text", "columns", "n_parts", "words"),
    [
        ("up_bps\n" + "1\n2\n" * 4, ["up_bps"], None, "8 rows are too few for a fit; 10 are the least"),
        ("up_bps\n" + "1\n" * 20, ["up_bps"], None, "all values of the column up_bps are 1: a number"),
        ("latency_s\n" + "0\n1\n" * 10, ["latency_s"], None, "has 10 values of 0, and log-normal values are above 0"),
        ("up_bps\n" + "1\n2\n" * 10, ["down_bps"], None, "the column down_bps is not in the file"),
        ("drop_rate\n" + "0\n1\n" * 10, ["drop_rate"], None, "the column drop_rate has no distribution in a profile"),
        ("up_bps\n" + "1\n2\n" * 10, ["up_bps"], 3, "has 2 distinct values, too few for 3 parts"),
    ],
)
def test_what_cannot_be_fitted_is_refused(text: str, columns: list[str], n_parts: int | None, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        fits(devices_in(text), columns, n_parts, seed=0)


def test_the_picture_has_both_distribution_functions_of_each_column(known: Fit) -> None:
    picture = picture_of([known], "measured.csv")
    (panel,) = picture.panels
    assert isinstance(panel, Lines)
    assert [axes.get_xscale() for axes in figure_of(picture).axes] == ["log"]
    measured, mixture = panel.series
    assert (measured.name, mixture.name) == ("measured (4,000)", "fitted, 2 parts")
    assert len(measured.x) == 400
    for x, y in list(zip(mixture.x, mixture.y, strict=True))[::20]:
        assert np.mean(known.values < x) == pytest.approx(y, abs=known.gap + 1e-3)


def test_the_command_prints_a_part_of_a_spec_and_draws_a_picture(strata: Strata, home: Path) -> None:
    speeds, rates = drawn(60), drawn(60, seed=0)
    rows = [f"{speed!r},{1e4 * rate!r},always" for speed, rate in zip(speeds, rates, strict=True)]
    (home / "m.csv").write_text("compute_sps,up_bps,availability\n" + "\n".join(rows), encoding="utf-8")
    done = strata("profiles", "fit", "m.csv", "--components", "1", "--picture", "fit.svg")
    assert done.code == 0, done.err
    assert (
        "# lost, since each column is drawn by itself: correlations of logarithms, compute_sps with up_bps" in done.out
    )
    assert "# not fitted: availability" in done.out
    profile = parse_spec(_loaded(done.out)).devices.profile
    assert profile is not None
    assert isinstance(profile.up_bps, LogNormal)
    assert (home / "fit.svg").read_text(encoding="utf-8").count("devices below") >= 2
    found = json.loads(strata("profiles", "fit", "m.csv", "--columns", "up_bps", "--format", "json").out)
    (one,) = found["fits"]
    assert one["bic"] == one["bic_by_parts"][str(len(one["distribution"].get("parts", [0])))]
    assert found["left_out"] == ["compute_sps", "availability"]


def test_the_page_shows_what_the_command_prints_of_its_measurements(strata: Strata, home: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "measured-devices.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    exec(code, {})  # noqa: S102 - it writes into the folder of the command
    shown = re.findall(r"^    (    (?:compute_sps|up_bps): .*)$", page, re.MULTILINE)
    printed = strata("profiles", "fit", "measured.csv").out.splitlines()
    assert len(shown) == 2
    for line, found in zip(shown, printed[-2:], strict=True):
        numbers = [[float(number) for number in re.findall(r"(?<=: )[0-9.]+", text)] for text in (line, found)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-3)
