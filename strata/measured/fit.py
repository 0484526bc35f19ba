"""Mixtures of log-normal distributions, fitted to columns of measured devices by maximum likelihood.

The logarithm of a log-normal quantity is Gaussian, so a mixture is fitted to logarithms by expectation maximisation
(scikit-learn's `GaussianMixture`, the best of three starts). The number of parts is the one with the smallest Bayesian
information criterion, p ln n - 2 ln L with p = 3k - 1 parameters of k parts; after two numbers in a row that are worse
than the best before, no more are tried.

Schwarz, Estimating the Dimension of a Model, Annals of Statistics 6(2), 1978.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from shared.core.errors import BadInput
from shared.core.formatting import counted, did_you_mean
from shared.simulation import LogNormal, LogNormalPart, quantile
from shared.simulation.device_file import MeasuredDevices

FITTED = ("compute_sps", "up_bps", "down_bps", "latency_s", "jitter_s", "delay_s", "link_delay_s")
"""The columns for which a profile may have a distribution."""
LEAST_ROWS = 10
"""Fewer rows are not fitted."""
MOST_PARTS = 5
"""Most parts that are tried where their number is not given."""
PATIENCE = 2
"""Numbers of parts in a row that are worse than the best before, after which no more are tried."""
STARTS, MOST_STEPS, CLOSE = 3, 2000, 1e-6
"""Of expectation maximisation: starts, most steps of each, and the gain of the mean log-likelihood that ends it."""
LEAST_VARIANCE = 1e-6
"""Added to the variance of each part's logarithms, so that equal values make no part of no width."""
DIGITS = 6
"""Significant digits of the figures of a fit."""
Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """A mixture for one column. All figures are those of the rounded parameters, as they are printed.

    Attributes:
        column: its name.
        values: measured, (n_rows,).
        found: the mixture.
        converged: whether expectation maximisation ended before its last step.
        tried: by number of parts, the criterion of each mixture that was tried.
    """

    column: str
    values: Values
    found: LogNormal
    converged: bool
    tried: Mapping[int, float]

    @cached_property
    def log_likelihood(self) -> float:
        """The log-likelihood of the measured values."""
        return log_likelihood(self.found, self.values)

    @property
    def bic(self) -> float:
        """The Bayesian information criterion."""
        return criterion(self.log_likelihood, len(self.found.mixture), len(self.values))

    @cached_property
    def gap(self) -> float:
        """The largest distance between the distribution functions of the values and the mixture."""
        logs, n = np.sort(np.log(self.values))[:, None], len(self.values)
        shares, medians, sigmas = _figures(self.found)
        fitted = (shares * ndtr((logs - np.log(medians)) / sigmas)).sum(axis=1)
        return float(max((np.arange(1, n + 1) / n - fitted).max(), (fitted - np.arange(n) / n).max()))


def log_likelihood(mixture: LogNormal, values: Values) -> float:
    """The log-likelihood of values under a mixture: sum of ln sum_k share_k N(ln x; ln median_k, sigma_k^2) / x."""
    logs = np.log(values)[:, None]  # (n, 1)
    shares, medians, sigmas = _figures(mixture)
    distances = (logs - np.log(medians)) / sigmas  # (n, n_parts)
    densities = np.log(shares) - np.log(sigmas) - 0.5 * math.log(2 * math.pi) - 0.5 * distances**2
    return float((np.logaddexp.reduce(densities, axis=1) - logs[:, 0]).sum())


def _figures(mixture: LogNormal) -> Values:
    """Shares, medians and deviations of the parts, (3, n_parts)."""
    return np.array([[part.share, part.median, part.sigma] for part in mixture.mixture]).T


def criterion(log_likelihood: float, n_parts: int, n: int) -> float:
    """The Bayesian information criterion of a mixture."""
    return (3 * n_parts - 1) * math.log(n) - 2 * log_likelihood


def fits(devices: MeasuredDevices, columns: Sequence[str], n_parts: int | None, seed: int) -> list[Fit]:
    """Fit some columns; `n_parts` is None where the criterion chooses.

    Raises:
        BadInput: a column is not in the file, has no distribution in a profile, or values that are not above 0.
    """
    n = len(devices.rows)
    if n < LEAST_ROWS:
        raise BadInput(f"{counted(n, 'row')} are too few for a fit; {LEAST_ROWS} are the least")
    for column in columns:
        if column not in devices.columns or column not in FITTED:
            there = [name for name in devices.columns if name in FITTED]
            hint = did_you_mean(column, there)
            why = f"is not in the file{hint}" if column not in devices.columns else "has no distribution in a profile"
            raise BadInput(f"the column {column} {why}; {', '.join(there) or 'no column of it'} can be fitted")
    return [_fit(column, values_of(devices, column), n_parts, seed) for column in columns]


def values_of(devices: MeasuredDevices, column: str) -> Values:
    """The measured values of a column, (n_rows,)."""
    return np.array([row[column] for row in devices.rows], np.float64)


def _fit(column: str, values: Values, n_parts: int | None, seed: int) -> Fit:
    if n_zero := int((values <= 0).sum()):
        least = "has 0" if n_zero == 1 else f"has {n_zero:,} values of 0"
        raise BadInput(f"the column {column} {least}, and log-normal values are above 0; leave it out with --columns")
    n_distinct = len(np.unique(values))
    if n_distinct == 1:
        raise BadInput(f"all values of the column {column} are {values[0]:g}: a number, which needs no distribution")
    if n_parts is not None and n_parts > n_distinct:
        raise BadInput(f"the column {column} has {n_distinct} distinct values, too few for {n_parts} parts")
    numbers = range(1, min(MOST_PARTS, n_distinct) + 1) if n_parts is None else [n_parts]
    found, tried = dict[int, tuple[LogNormal, bool]](), dict[int, float]()
    for number in numbers:
        found[number] = _maximised(np.log(values), number, seed)
        tried[number] = criterion(log_likelihood(found[number][0], values), number, len(values))
        best = min(tried, key=tried.__getitem__)
        if number >= best + PATIENCE:
            break
    return Fit(column, values, *found[best], tried)


def _maximised(logs: Values, n_parts: int, seed: int) -> tuple[LogNormal, bool]:
    """The mixture of so many parts with the largest likelihood that was found, and whether the search converged."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    model = GaussianMixture(
        n_parts, tol=CLOSE, reg_covar=LEAST_VARIANCE, max_iter=MOST_STEPS, n_init=STARTS, random_state=seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # `converged` says it
        model.fit(logs[:, None])
    order = np.argsort(model.means_[:, 0])
    shares = _rounded_shares(model.weights_[order].tolist())
    centres, sigmas = model.means_[order, 0], np.sqrt(model.covariances_[order, 0, 0])
    parts = [
        LogNormalPart(share=share, median=_rounded(math.exp(centre)), sigma=_rounded(sigma))
        for share, centre, sigma in zip(shares, centres.tolist(), sigmas.tolist(), strict=True)
        if share
    ]
    if len(parts) == 1:
        return LogNormal(median=parts[0].median, sigma=parts[0].sigma), bool(model.converged_)
    return LogNormal(parts=tuple(parts)), bool(model.converged_)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _rounded_shares(shares: Sequence[float]) -> list[float]:
    """Shares with `DIGITS` decimals that add up to 1: largest remainder."""
    unit = 10**DIGITS
    whole = [math.floor(share * unit) for share in shares]
    behind = sorted(range(len(shares)), key=lambda at: whole[at] - shares[at] * unit)
    for at in behind[: unit - sum(whole)]:
        whole[at] += 1
    return [n / unit for n in whole]


def correlations(devices: MeasuredDevices, columns: Sequence[str]) -> dict[tuple[str, str], float]:
    """The correlations between the logarithms of columns, which separate distributions lose."""
    logs = {column: np.log(values_of(devices, column)) for column in columns}
    return {
        (one, other): float(np.corrcoef(logs[one], logs[other])[0, 1])
        for at, one in enumerate(columns)
        for other in columns[at + 1 :]
    }


def default_columns(devices: MeasuredDevices) -> list[str]:
    """The columns of a file that are fitted where none are named."""
    return [column for column in devices.columns if column in FITTED]


def yaml_of(found: Sequence[Fit]) -> str:
    """The part of a spec that gives devices these distributions."""
    lines = ["devices:", "  profile:"]
    for fit in found:
        parts = [_flow(part.model_dump()) for part in fit.found.parts]
        own = {"median": fit.found.median, "sigma": fit.found.sigma}
        body = f"parts: [{', '.join(parts)}]" if parts else _flow(own).strip("{}")
        lines.append(f"    {fit.column}: {{name: lognormal, {body}}}")
    return "\n".join(lines)


def _flow(values: Mapping[str, float | None]) -> str:
    return "{" + ", ".join(f"{name}: {value!r}" for name, value in values.items()) + "}"


def curve(mixture: LogNormal, n: int = 200) -> tuple[list[float], list[float]]:
    """Points of a mixture's distribution function: values, and the shares of devices below them."""
    shares = [(at + 0.5) / n for at in range(n)]
    return [quantile(mixture, share) for share in shares], shares
