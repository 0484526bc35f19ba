"""The notebook in examples/: run anew with `python -m docs_site.notebook`, and shown as a page of the site."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "first_federation.ipynb"
PAGE = "first-federation.md"
LIMIT_S = 300
"""Longest time of a cell, on a busy machine."""
_MIMES = ("text/html", "image/png", "text/plain")
"""What a page shows of an output, the first that it has."""


def page(notebook: dict[str, Any]) -> str:
    """A notebook as Markdown: its texts, its code and the outputs of its last run."""
    return "\n\n".join(part for cell in notebook["cells"] for part in _cell(cell)) + "\n"


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield _fenced(source, "python")
    yield from (_output(each) for each in cell["outputs"])


def _output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return _fenced("".join(output["text"]), "text")
    mime = next(mime for mime in _MIMES if mime in output["data"])
    content = "".join(output["data"][mime])
    if mime == "text/plain":
        return _fenced(content, "text")
    if mime == "image/png":
        return f'<img alt="the picture drawn above" src="data:image/png;base64,{"".join(content.split())}">'
    return f"<div>{''.join(line.strip() for line in content.splitlines())}</div>"  # a blank line would end the HTML


def _fenced(text: str, language: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def run_anew(source: Path, target: Path, folder: Path) -> None:
    """Run all cells in a folder, and write the notebook with their outputs.

    Raises:
        CellExecutionError: a cell raises.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(source, as_version=4)  # type: ignore[no-untyped-call]
    place = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=LIMIT_S, coalesce_streams=True, resources=place).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
    nbformat.write(notebook, target)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        source, target, folder = sys.argv[1:] or (NOTEBOOK, NOTEBOOK, scratch)
        run_anew(Path(source), Path(target), Path(folder))
