"""Runs all checks that apply to what a package of plug-ins brings."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from shared.core import plugins
from shared.core.errors import BadInput, StrataError, UnknownName
from shared.core.user_code import user_code
from shared.federation.hooks import Algorithm
from shared.federation.plugin_checks import KINDS
from shared.federation.selection import SelectionPolicy
from shared.training.data.plugged import DataSource
from shared.training.losses import Loss
from shared.training.metrics.metric import Metric
from shared.training.models import ModelFactory
from shared.training.partition import Partitioner
from strata.checks import algorithm_rounds, algorithm_value, scores, values
from strata.checks.monitor import CheckFailed
from strata.checks.tried_rounds import TriedRounds


@dataclass(frozen=True)
class Result:
    """The outcome of one check of a value; `cause` says why it failed, None if it did not."""

    kind: str
    name: str
    check: str
    cause: str | None


Check = tuple[str, Callable[[], Any]]
"""What is checked, and the check."""


def checked(package: str, only: str | None = None) -> Iterator[Result]:
    """Checks what a package brings, or one value of it; yields each result as it is known.

    Raises:
        BadInput: there is no such package, or a name in it is taken.
        UnknownName: it brings nothing of that name.
    """
    if package not in plugins.packages():
        os.environ[plugins.VARIABLE] = ",".join([*plugins.packages(), package])
    found = [
        (kind.word, name, one.value) for kind in KINDS for name, one in kind.plugged().items() if one.package == package
    ]
    if only is not None and only not in {name for _, name, _ in found}:
        raise UnknownName(f"value of {package}", only, [name for _, name, _ in found])
    for word, name, value in found:
        if only in (None, name):
            yield from _checked(word, name, value)


def _checked(word: str, name: str, value: Any) -> Iterator[Result]:
    with tempfile.TemporaryDirectory(prefix="strata-check-") as folder:
        for what, check in _checks(value, Path(folder)):
            yield Result(word, name, what, _cause(check))


def _cause(check: Callable[[], Any]) -> str | None:
    """Why a check fails, None if it does not."""
    try:
        with user_code("it"):
            _run(check)
    except StrataError as error:
        return error.detail
    return None


def _run(check: Callable[[], Any]) -> None:
    try:
        check()
    except CheckFailed as error:
        raise BadInput(str(error)) from None


def _checks(value: Any, folder: Path) -> Iterator[Check]:
    if isinstance(value, Algorithm):
        yield from _of_algorithm(value, folder)
        return
    yield "its description is one line", partial(values.has_a_description, value)
    yield "its parameters have defaults", partial(values.parameters_have_defaults, value)
    if isinstance(value, ModelFactory):
        fitting: list[values.Fit] = []
        yield "its outputs fit a target", lambda: fitting.append(values.model_fits_some_data(value))
        for fit in fitting:
            yield "its seed alone decides the weights", partial(values.model_is_drawn_by_the_seed, value, fit)
            yield "no client sees another's", partial(values.clients_are_alike_in_any_order, value, fit)
            yield "all of it trains, and its operations are counted", partial(values.model_trains, value, fit)
    elif isinstance(value, DataSource):
        yield "its arrays are valid, and the same each time", partial(values.data_set_is_the_same_each_time, value)
    elif isinstance(value, Partitioner):
        yield "each sample goes to one client", partial(values.samples_are_dealt_by_the_generator_alone, value)
    elif isinstance(value, SelectionPolicy):
        yield "it is a pure function", partial(values.seats_are_selected_by_the_context_alone, value, folder)
    elif isinstance(value, Loss):
        yield "it is a number for each prediction", partial(scores.loss_is_one_number_for_each_prediction, value)
    elif isinstance(value, Metric):
        yield "its states add up", partial(scores.states_of_parts_add_up, value)


def _of_algorithm(algorithm: Algorithm, folder: Path) -> Iterator[Check]:
    yield "its hooks keep no state", partial(algorithm_value.hooks_keep_no_state, algorithm)
    yield "its hooks name the records that it declares", partial(algorithm_value.hooks_name_their_records, algorithm)
    yield "its parameters have defaults and bounds", partial(algorithm_value.parameters_have_defaults, algorithm)
    done: list[TriedRounds] = []
    yield "two rounds run, and each message is sent unchanged", partial(_try, algorithm, folder, done)
    for rounds in done:
        yield "its hooks are pure", partial(algorithm_rounds.hooks_are_pure, rounds)
        used = partial(algorithm_rounds.every_declared_type_is_used, algorithm, rounds.monitor)
        yield "every declared record is used", used
        most = max(rounds.sent, key=len, default=[])[:4]
        if len(most) > 1:
            in_order = partial(algorithm_rounds.order_changes_nothing, rounds.experiment, most)
            yield "the order of updates changes nothing", in_order
        yield "the seed decides the result", partial(algorithm_rounds.seed_decides_the_bits, algorithm, rounds, folder)


def _try(algorithm: Algorithm, folder: Path, done: list[TriedRounds]) -> None:
    if algorithm.needs.get("schedule") in ("free_compute", "finish_time"):
        cause = f"{algorithm.name} plans shares by digital twins, which only a run has: try it with `strata run`"
        raise CheckFailed(cause)
    done.append(algorithm_rounds.tried(algorithm, folder, monitored=True))
