"""`strata.connect`, `Cloud` and `Run` with a fake cloud."""

from __future__ import annotations

import copy
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

import strata
from shared.core.errors import BadInput, Conflict, DeadlineExceeded, NotFound, Unauthorised, Unreachable, WireError
from shared.results.folder import read_run
from shared.run_records.rounds import Evaluation
from strata.objects import frames
from strata.objects.run import _settled
from tests.strata.fake_cloud import FakeCloud
from tests.strata.samples import a_round, a_run

SMALL = {"name": "small", "num_rounds": 3, "data": "digits"}


@pytest.fixture
def connected(url: str) -> Iterator[strata.Cloud]:
    """A connection to the fake cloud."""
    with strata.connect(url) as found:
        yield found


# ---- importing


def test_importing_strata_loads_nothing_and_lists_what_it_offers() -> None:
    program = (
        "import sys, strata; print(*sorted(sys.modules.keys() & {'torch', 'httpx2', 'typer', 'pydantic', 'rich'}))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
    assert set(strata.__all__) <= set(dir(strata))
    assert all(getattr(strata, name) is not None for name in strata.__all__)
    with pytest.raises(AttributeError, match="module 'strata' has no attribute 'fly'"):
        strata.fly  # noqa: B018 - the access is what is tested


# ---- connecting


def test_the_url_and_the_token_come_from_the_arguments_or_the_environment(
    url: str, cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotFound, match="no cloud found"):
        strata.connect()
    with pytest.raises(Unreachable, match="no cloud answers at"):
        strata.connect("http://127.0.0.1:9")
    cloud.token = token = "s3cret"  # noqa: S105 - of the fake cloud
    with pytest.raises(Unauthorised) as refused:
        strata.connect(url)
    assert (refused.value.status, refused.value.detail) == (401, "the API token is missing or wrong")
    with strata.connect(url, token=token) as found:
        assert found.topology().n_devices == 5
    monkeypatch.setenv("STRATA_URL", url)
    monkeypatch.setenv("STRATA_API_TOKEN", token)
    with strata.connect() as found:
        assert found.url == url
        assert [edge.edge for edge in found.edges()] == ["edge-1"]


def test_a_closed_connection_says_so(connected: strata.Cloud) -> None:
    run = connected.get_run()
    with pytest.raises(NotFound, match="no run r9"):
        connected.get_run("r9")
    connected.close()
    connected.close()
    with pytest.raises(Conflict, match="is closed"):
        connected.runs()
    with pytest.raises(Conflict, match="is closed"):
        run.model()
    assert repr(connected).endswith(", closed>")
    assert run.accuracy == 0.93, "of a run that has ended, what was read before"


def test_a_run_says_what_to_pass_to_another_process_in_its_place(connected: strata.Cloud) -> None:
    with pytest.raises(TypeError, match=r"pass `cloud.url` and `run.id`, and call `strata.connect\(url\)"):
        copy.deepcopy(connected.get_run())  # which asks an object what whatever sends it to another process asks


# ---- starting runs


@pytest.mark.parametrize("form", ["fields", "spec", "path"])
def test_a_run_starts_from_fields_a_spec_or_a_path_with_overrides(
    connected: strata.Cloud, cloud: FakeCloud, spec_file: Path, form: str
) -> None:
    source: Any = {"fields": SMALL, "spec": strata.Spec(**SMALL), "path": spec_file}[form]
    overrides = {
        "algorithm.name": "fedprox",
        "algorithm.params.mu": np.float64(0.5),
        "lr": 1e-5,
        "batch_size": np.int64(8),
    }
    run = connected.run(source, **overrides)
    sent = cloud.specs[-1]
    assert sent["algorithm"] == {"name": "fedprox", "params": {"mu": 0.5}}
    assert (sent["lr"], sent["batch_size"], sent["num_rounds"], sent["name"]) == (1e-5, 8, 3, "small")
    assert (run.status, run.name) == ("pending", "small")
    assert run.id in {each.id for each in connected.runs()}


def test_a_wrong_spec_is_refused_by_its_field_before_anything_is_sent(
    connected: strata.Cloud, cloud: FakeCloud
) -> None:
    wrong: tuple[dict[str, Any], ...] = (
        {"lrr": 0.1},
        {"lr": float("nan")},
        {"algorithm.params.mu": 1},
        {"lr": object()},
    )
    for each in wrong:
        with pytest.raises(BadInput) as refused:
            connected.run(SMALL, **each)
        assert [refused.value.field] == [*each], refused.value.detail
    assert cloud.specs == []
    with pytest.raises(BadInput) as refused:
        connected.run(SMALL, lr=99)  # the cloud refuses it
    assert (refused.value.status, refused.value.field, refused.value.detail) == (422, "lr", "lr: too large")


# ---- waiting and reading


async def test_everything_works_within_a_running_event_loop(url: str, cloud: FakeCloud, capsys: Any) -> None:
    """The methods wait for their answers and start no event loop of their own, as in a notebook's cell."""
    with strata.connect(url) as connected:
        run = connected.run(SMALL).wait()
        assert (run.status, run.accuracy, run.loss) == ("completed", 0.93, 0.3)
        assert [row.accuracy for row in run.rounds()] == [0.91, 0.92, 0.93]
        events = list(run.events())
    assert [event.kind for event in events].count("round.committed") == 3
    assert events[-1].data == {"status": "completed"}
    assert "completed round 3/3" in capsys.readouterr().err


def test_waiting_can_be_silent_and_limited_and_raises_the_reason_of_a_failure(
    connected: strata.Cloud, cloud: FakeCloud, capsys: Any
) -> None:
    connected.run(SMALL).wait(progress=False)
    assert capsys.readouterr() == ("", "")
    cloud.ends_as = "failed"
    run = connected.run(SMALL)
    with pytest.raises(strata.RunFailed, match=f"run {run.id} failed: no device left"):
        run.wait(progress=False)
    assert run.status == "failed"
    cloud.holds = True  # the stream ends in the first round, again and again
    with pytest.raises(DeadlineExceeded, match=r"has not ended after 0\.1 s"):
        connected.run(SMALL).wait(0.1, progress=False)


def test_a_run_is_paused_resumed_and_stopped(connected: strata.Cloud, cloud: FakeCloud) -> None:
    run = connected.run(SMALL)
    assert run.pause().status == "pausing"
    assert run.resume(accept_changes=True).status == "running"
    assert cloud.accepted
    assert run.stop().status == "stopped"
    assert [path for verb, path in cloud.seen if verb == "POST"][1:] == [
        f"/runs/{run.id}/{verb}" for verb in ("pause", "resume", "stop")
    ]


def test_what_was_saved_of_a_running_run_is_fetched_again_when_it_has_ended(
    connected: strata.Cloud, cloud: FakeCloud, tmp_path: Path
) -> None:
    cloud.files["run.json"] = lambda run: cloud.runs[run].model_dump_json().encode()
    run = connected.run(SMALL)
    assert read_run(run.save(tmp_path)).status == "pending"
    run.wait(progress=False)
    assert read_run(run.save(tmp_path)).status == "completed"
    assert run.folder == tmp_path / run.id


def test_a_model_is_a_state_dict_and_other_or_more_bytes_are_refused(
    connected: strata.Cloud, cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = connected.get_run("r1")
    with pytest.raises(WireError, match="not valid safetensors"):
        run.model()
    cloud.models["global"] = save({"head.weight": torch.ones(2, 3)})
    (name, tensor), = run.model().items()  # fmt: skip
    assert (name, tensor.tolist()) == ("head.weight", [[1.0] * 3] * 2)
    cloud.models["global"] = save({"x": torch.ones(100)})
    monkeypatch.setattr("strata.objects.run.MAX_MODEL_BYTES", 399)
    with pytest.raises(strata.errors.TooLarge, match="more than 399 bytes"):
        connected.get_run("r1").model()


def test_rounds_become_a_table_with_a_row_each(connected: strata.Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    run = connected.get_run()
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pandas", None)
        with pytest.raises(frames.PandasMissing, match=r"pip install pandas.*\[notebook\]"):
            run.to_pandas()
    pandas = pytest.importorskip("pandas", reason="the extra `notebook` is not installed")
    table = run.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert table.index.tolist() == [1, 2, 3]
    assert table["accuracy"].tolist() == [0.91, 0.92, 0.93]
    assert (table["bytes_up"].sum(), table["n_lost"].sum(), table["n_used"].sum()) == (600, 3, 6)
    assert not {"edges", "failures", "figures", "evaluation", "kind"} & set(table.columns)
    assert run.to_pandas("devices")["n_train"].tolist() == [30, 12]
    with pytest.raises(strata.StrataError, match="unknown table 'twins'; known: classes, confu"):
        run.to_pandas("twins")  # type: ignore[arg-type]


# ---- which rounds are given


def test_a_round_is_given_once_it_or_a_later_one_is_evaluated_or_will_not_be() -> None:
    def given(evaluated: set[int], status: str = "running", **spec: Any) -> list[int]:
        scores = {"global": Evaluation(n=1, accuracy=0.5, loss=1.0)}
        rows = [a_round(no, evaluation=scores if no in evaluated else None) for no in range(1, 6)]
        fields = {**a_run().spec.model_dump(), "num_rounds": 9, **spec}
        info = a_run(status=status, rounds=5, num_rounds=9, spec=fields)
        return [row.round_no for row in _settled(rows, info)]

    assert given(set()) == []
    assert given({1, 3}) == [1, 2, 3]
    assert given({2}, eval_every=2) == [1, 2, 3]
    assert given({2}, eval_every_s=5.0) == [1, 2]
    assert given(set(), status="stopped") == [1, 2, 3, 4, 5]


# ---- how objects are shown


def test_objects_say_what_they_are_and_escape_what_others_wrote(connected: strata.Cloud, cloud: FakeCloud) -> None:
    cloud.change("r1", name="<script>x</script>")
    run = connected.get_run("r1")
    assert repr(run) == "<Run r1 '<script>x</script>': completed, 3/3 rounds, accuracy 93.00 %>"
    shown = run._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "93.00 % (global model)" in shown
    assert "agent with 5 devices" in connected._repr_html_()
    assert repr(connected) == f"<Cloud {connected.url}>"


def test_a_notebook_shows_one_line_that_is_replaced(connected: strata.Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    display = pytest.importorskip("IPython.display", reason="the extra `notebook` is not installed")
    shown: list[str] = []

    class Handle:
        def update(self, output: Any) -> None:
            shown.append(output.data)

    def first(output: Any, display_id: bool) -> Handle:
        assert display_id
        shown.append(output.data)
        return Handle()

    monkeypatch.setattr(display, "display", first)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    connected.run(SMALL, name="a <b>").wait()
    assert all(line.startswith("<div><b>") and "<progress" in line for line in shown)
    assert 'value="3" max="3"' in shown[-1]
    assert len(shown) >= 2


# ---- specs


def test_a_spec_is_checked_as_it_is_written_and_keeps_the_digest_of_its_file(spec_file: Path) -> None:
    from strata.spec_files import read_spec

    spec = strata.Spec(name="small", seed=7, num_rounds=3, data="digits")
    assert spec.digest() == read_spec(spec_file).digest()
    assert spec.replace(lr=0.5).lr == 0.5
    for wrong, message in (
        ({"rounds": 3}, "rounds: unknown field; did you mean 'num_rounds'?"),
        ({"algorithm": "fedprocks"}, "unknown algorithm"),
        ({"num_edges": 3, "num_devices": 2}, "num_edges: 3 edges for 2 devices"),
    ):
        with pytest.raises(BadInput) as refused:
            strata.Spec(**wrong)
        assert message in refused.value.detail
        assert refused.value.field is not None
    with pytest.raises(BadInput, match="lr: "):
        spec.replace(lr=-1)


# ---- sweeps


def test_a_sweep_runs_every_combination_and_is_a_table(
    connected: strata.Cloud, cloud: FakeCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.files["run.json"] = lambda run: cloud.runs[run].model_dump_json().encode()
    cloud.files["rounds.csv"] = b""
    values = {"lr": np.array([0.1, 0.2]), "seed": range(2), "batch_size": 8}
    found = connected.sweep(SMALL, values, progress=False)
    assert [(spec["lr"], spec.get("seed", 0), spec["batch_size"]) for spec in cloud.specs] == [
        (lr, seed, 8) for lr, seed in itertools.product((0.1, 0.2), (0, 1))
    ]
    assert found.completed
    assert repr(found) == f"<Sweep 'small': 4 of 4 combinations completed, in {found.folder}>"
    assert [run.id for run in found.runs] == ["r2", "r3", "r4", "r5"]
    assert found.best.id == "r2"
    assert found.best.accuracy == 0.93
    assert "<td>0.2</td>" in found._repr_html_()
    assert connected.sweep(SMALL, values, progress=False).completed
    assert len(cloud.specs) == 4, "what is complete is not run again"
    with pytest.raises(NotFound, match="has been evaluated"):
        found.plot()
    with pytest.raises(BadInput, match="lr: a value is missing"):
        connected.sweep(SMALL, {"lr": []})
    pytest.importorskip("pandas", reason="the extra `notebook` is not installed")
    assert found.to_pandas()["lr"].tolist() == [0.1, 0.1, 0.2, 0.2]
    assert found.over_seeds()["n"].tolist() == [2, 2]
