"""The notebooks of docs/notebooks: each runs from its first cell to its last, and is kept with what it shows.

``VEILSUM_WRITE_NOTEBOOKS=1`` writes them anew, as after a change of what they show.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))
WRITE = os.environ.get("VEILSUM_WRITE_NOTEBOOKS") == "1"


def kinds(cell: Any) -> set[str]:
    """The forms in which a cell shows something; how often a bar changed is left aside."""
    return {kind for output in cell.get("outputs", ()) for kind in output.get("data", {output["output_type"]: ""})}


def settled(cell: Any) -> list[Any]:
    """A cell's outputs without what differs from machine to machine: the progress of a study is kept at its end."""
    return [output for output in cell["outputs"] if output["output_type"] != "stream" or output["name"] != "stderr"]


@pytest.mark.system  # test_python_api.py runs the calls that they show by default
@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in NOTEBOOKS])
def test_a_notebook_runs_and_shows_what_is_kept(path: Path, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    kept = nbformat.read(path, as_version=4)
    run = nbformat.from_dict(json.loads(json.dumps(kept)))
    NotebookClient(run, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    code = [cell for cell in run.cells if cell.cell_type == "code"]
    for cell in code:
        cell["outputs"], cell["metadata"] = settled(cell), {}
    if WRITE:
        nbformat.write(run, path)
        return
    for before, now in zip([cell for cell in kept.cells if cell.cell_type == "code"], code, strict=True):
        assert kinds(before) == kinds(now), now.source
        assert before.execution_count == now.execution_count


def test_notebooks_are_tutorials() -> None:
    assert {path.stem for path in NOTEBOOKS} == {"first-study", "survival-and-regression", "model"}
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text())["cells"]
        assert "".join(cells[0]["source"]).startswith("# ")
        assert not re.search("/tmp|/home|/root|Warning", path.read_text()), path.stem
        told = sum(cell["cell_type"] == "markdown" for cell in cells)
        assert told >= len(cells) // 3
