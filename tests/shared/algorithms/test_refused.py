"""What no algorithm, rate or optimiser can do is refused by the field, for a cause."""

from __future__ import annotations

import re
from typing import Any

import pytest

from shared.core.errors import BadInput
from shared.federation.registry import load_algorithm
from shared.federation.spec_parser import parse_spec

SER = {"name": "fedser"}
LATE = {"late": "next_round", "round_deadline_s": 60}

PARAMETERS: list[tuple[str, dict[str, Any], str, str]] = [
    ("bofl", {"phi": 0.5}, "omega", "omega 0.4 is below phi 0.5"),
    ("bofl", {"delta": 0}, "delta", "at least 1"),
    ("bofl", {"sigma_against": "initial", "compare": "update"}, "sigma_against", "compare: parameters"),
    ("bofl", {"margin": "wide"}, "margin", "'expanded' or 'literal'"),
    ("bofl", {"epsilon": 1}, "epsilon", "unknown field"),
    *(("dtpfl", {"threshold": value}, "threshold", "") for value in (-0.1, 2.1, "wide")),
    ("es_afl", {"start": 0.9, "max_gene": 0.5}, "", "start 0.9 is above max_gene 0.5"),
    ("es_afl", {"sigma": 0.9, "max_sigma": 0.5}, "", "sigma 0.9 is above max_sigma 0.5"),
    ("es_afl", {"statistics": "none"}, "statistics", "retaken"),
    ("es_afl", {"ties": "none"}, "ties", "random"),
    ("es_afl", {"head_bias": "none"}, "head_bias", "fixed"),
    ("fedasync", {"alpha": 0}, "alpha", ""),
    ("fedasync", {"alpha": 1.1}, "alpha", ""),
    ("fedasync", {"rho": -1}, "rho", ""),
    *(("fedbuff", {"server_lr": value}, "server_lr", "") for value in (0, -1, float("nan"))),
    ("feddc", {"clip_norm": 0}, "clip_norm", ""),
    ("feddyn", {"alpha": -1}, "alpha", ""),
    ("fedmix", {"lam": 0.1, "mash": 1}, "mash", ""),
    ("fedprox", {"mu": -1}, "mu", ""),
    ("fedser", {"alpha": 1.5}, "alpha", "at most 1"),
    ("fedser", {"transforms": ["blur"]}, "transforms.0", "'resolution', 'crop', 'rotation' or 'flip'"),
    ("fedser", {"bn": "frozen"}, "bn", "'batch' or 'running'"),
    ("moon", {"temperature": 0}, "temperature", ""),
    ("per_fedavg", {"adapt_steps": 0}, "adapt_steps", ""),
    ("scaffold", {"server_lr": 0}, "server_lr", ""),
    *(("t_fedavg", {rule: "median"}, rule, "") for rule in ("threshold_of", "server_threshold_of", "factor")),
]


@pytest.mark.parametrize(("algorithm", "params", "field", "message"), PARAMETERS)
def test_parameters_out_of_range_are_refused_by_the_field(
    algorithm: str, params: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(BadInput) as refused:
        parse_spec({"algorithm": {"name": algorithm, "params": params}, **load_algorithm(algorithm).needs})
    assert (refused.value.field or "").startswith(f"algorithm.params.{field}" if field else "algorithm.params")
    assert message in refused.value.detail


def local(name: str, objective: Any, **params: Any) -> dict[str, Any]:
    return {"algorithm": {"name": name, "params": params, "local": objective}}


SPECS: list[tuple[dict[str, Any], str, str]] = [
    ({"algorithm": "probe_edge", "schedule": "equal"}, "client", "probe_edge needs client: edge, not device"),
    # what an algorithm needs of the other fields
    ({"algorithm": "bofl", "client": "edge"}, "client", "bofl needs client: device"),
    ({"algorithm": "dtpfl"}, "client", "dtpfl needs client: edge"),
    ({"algorithm": "es_afl", "edge_rounds": 2}, "edge_rounds", "es_afl needs edge_rounds"),
    ({"algorithm": "es_afl", "edge_rounds": [1, 2]}, "edge_rounds", "es_afl needs edge_rounds: 1, not [1, 2]"),
    (
        {"algorithm": "fedasync", "compression": {"up": "topk"}},
        "compression.up",
        "fedasync sends up models, not changes",
    ),
    ({"algorithm": "es_afl", "schedule": "equal"}, "schedule", "es_afl needs schedule"),
    ({"algorithm": "es_afl", "client": "edge"}, "client", "es_afl needs client"),
    ({"algorithm": "feddc", "schedule": "equal"}, "schedule", "feddc needs"),
    ({"algorithm": "feddc", "arrival_rate": 0.5}, "arrival_rate", "feddc needs"),
    ({"algorithm": "feddc", **LATE}, "late", "feddc needs"),
    ({"algorithm": "feddc", "client": "edge"}, "client", "feddc needs"),
    ({"algorithm": "feddyn", "client": "edge"}, "client", "feddyn needs"),
    ({"algorithm": "feddyn", **LATE}, "late", "feddyn needs"),
    ({"algorithm": "fednova", "schedule": "equal", "client": "edge"}, "client", "fednova needs"),
    ({"algorithm": "fednova", "schedule": "equal", "average_every": "epoch"}, "average_every", "fednova needs"),
    *(
        ({"algorithm": "lafl_cpn", "schedule": name}, "schedule", f"lafl_cpn needs schedule: own_data, not {name}")
        for name in ("equal", "free_compute", "finish_time")
    ),
    (
        {"algorithm": {"name": "feddc", "params": {"clip_norm": 10}}, "vectorised": {"width": 2}},
        "vectorised",
        "clip_norm takes the norm of one device's gradients",
    ),
    # local objectives
    (local("fedser", SER), "algorithm.local", "fedser has a local objective of its own"),
    (local("moon", SER), "algorithm.local", "moon has a local objective of its own"),
    (local("fedmix", SER), "algorithm.local", "fedmix has a local objective of its own"),
    (local("per_fedavg", SER), "algorithm.local", "per_fedavg has a local objective of its own"),
    (local("scaffold", SER, option="I"), "algorithm.local", "scaffold has a local objective of its own"),
    (local("bofl", "fedprox"), "algorithm.local", "fedprox has no local objective"),
    (local("bofl", "fedsir"), "algorithm.local.name", "unknown algorithm 'fedsir'"),
    (local("bofl", {**SER, "params": {"alpha": 0}}), "algorithm.local.params.alpha", "greater than 0"),
    (local("bofl", {**SER, "params": {"nu": 0}}), "algorithm.local.params.nu", "parameters of fedser: mu, n, alpha"),
    # rates and the optimisers of devices
    ({"lr": {"name": "linear"}}, "lr_schedule", "'linear'"),
    ({"lr": {"name": "step"}}, "lr_schedule.every", "required"),
    ({"lr": {"name": "step", "every": 0}}, "lr_schedule.every", "at least 1"),
    ({"lr": {"name": "step", "every": 2, "factor": 2}}, "lr_schedule.factor", "at most 1"),
    ({"lr": {"name": "cosine", "lr": -1}}, "lr", "greater than 0"),
    ({"lr": {"name": "cosine", "warmup": 10}}, "lr_schedule", "warmup is not below"),
    ({"lr": {"name": "constant"}, "lr_schedule": "cosine"}, "lr", "is a number where"),
    ({"optimizer": "rmsprop"}, "optimizer", "'sgd', 'adam' or 'adamw'"),
    ({"optimizer": "adam", "momentum": 0.9}, "momentum", "moments of its own"),
    ({"optimizer": "adam", "vectorised": {"width": 2}}, "vectorised", "needs optimizer: sgd"),
    ({"optimizer": "adam", "average_every": "step", "schedule": "equal"}, "optimizer", "one plain SGD step"),
    ({"optimizer": "adam", "algorithm": "scaffold"}, "optimizer", "scaffold needs optimizer: sgd, not adam"),
    ({"optimizer": "adamw", "algorithm": "fednova"}, "optimizer", "fednova needs optimizer: sgd, not adamw"),
    # optimisers of servers
    ({"server_optimizer": "adam", "algorithm": "feddc"}, "server_optimizer", "feddc does more with a mean update"),
    ({"server_optimizer": "adam", "algorithm": "es_afl"}, "server_optimizer", "es_afl does more"),
    ({"server_optimizer": {"edges": "adam"}}, "server_optimizer.edges", "edge_rounds above 1"),
    ({"server_optimizer": "adm"}, "server_optimizer.cloud", "'adm'"),
    ({"server_optimizer": {"name": "sgd", "beta1": 0.1}}, "server_optimizer.cloud.beta1", "unknown field"),
    ({"server_optimizer": {"name": "adam", "tau": 0}}, "server_optimizer.cloud.tau", "at least"),
    ({"server_optimizer": {"name": "yogi", "beta2": 1}}, "server_optimizer.cloud.beta2", "less than 1"),
    ({"server_optimizer": {"clod": "adam"}}, "server_optimizer.clod", "did you mean 'cloud'"),
    ({"server_optimizer": 3}, "server_optimizer", "mapping of names"),
]


@pytest.mark.parametrize(("spec", "field", "message"), SPECS)
def test_specs_that_cannot_be_followed_are_refused_by_field_and_cause(
    spec: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(BadInput, match=re.escape(message)) as refused:
        parse_spec(spec)
    assert refused.value.field == field


def test_vectorised_feddc_without_a_bound_is_accepted() -> None:
    parse_spec({"algorithm": "feddc", "vectorised": {"width": 2}})
