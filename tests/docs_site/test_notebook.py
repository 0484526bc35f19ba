"""The notebook of examples/ runs as it is shown, and the site shows it as it was run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from docs_site.notebook import NOTEBOOK, page

ROOT = Path(__file__).resolve().parents[2]


def code_of(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def kinds_of(cell: dict[str, Any]) -> list[list[str]]:
    """Returns the kinds of a cell's outputs; their figures differ between processors and times."""
    return [sorted(each.get("data", {each["output_type"]: ""})) for each in cell["outputs"]]


def test_the_notebook_was_run_from_the_first_cell_to_the_last() -> None:
    cells = code_of(NOTEBOOK)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = [kind for cell in cells for output in kinds_of(cell) for kind in output]
    assert {"image/png", "text/html", "stream"} <= set(kinds)
    assert "error" not in kinds


def test_the_page_shows_the_code_and_the_outputs() -> None:
    shown = page(json.loads(NOTEBOOK.read_text(encoding="utf-8")))
    assert all(f"```python\n{''.join(cell['source'])}\n```" in shown for cell in code_of(NOTEBOOK))
    assert '<img alt="the picture drawn above" src="data:image/png;base64,' in shown
    assert "round 8: accuracy 0." in shown
    assert "<progress" in shown


def test_an_output_is_shown_in_its_best_form_and_html_has_no_blank_line() -> None:
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["a\n", "b\n"]},
        {"output_type": "display_data", "data": {"text/plain": "<P>", "text/html": ["<p>\n", "\n", "x</p>"]}},
        {"output_type": "execute_result", "data": {"text/plain": ["(1,\n", " 2)"]}},
    ]
    cell = {"cell_type": "code", "source": ["f(\n", ")"], "outputs": outputs}
    text = {"cell_type": "markdown", "source": ["# T\n", "words"]}
    assert page({"cells": [text, cell]}) == (
        "# T\nwords\n\n```python\nf(\n)\n```\n\n```text\na\nb\n```\n\n<div><p>x</p></div>\n\n```text\n(1,\n 2)\n```\n"
    )


@pytest.mark.e2e
def test_the_notebook_runs_and_gives_outputs_like_those_kept(tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="the extra `notebook` is not installed")
    pytest.importorskip("pandas", reason="the extra `notebook` is not installed")
    command = [sys.executable, "-m", "docs_site.notebook", str(NOTEBOOK), str(tmp_path / "run.ipynb"), str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    kept, run = code_of(NOTEBOOK), code_of(tmp_path / "run.ipynb")
    assert [cell["source"] for cell in run] == [cell["source"] for cell in kept]
    assert [kinds_of(cell) for cell in run] == [kinds_of(cell) for cell in kept]
    assert run[-1]["outputs"][0]["data"]["text/plain"] == kept[-1]["outputs"][0]["data"]["text/plain"] == ["True"]
    assert len(list((tmp_path / "runs").glob("*/run.json"))) == 2
