"""The page on methods says what the code does: every study in it compiles, and its tables hold every parameter and default."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from support.randomness import SeededRandom
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.methods.aligning import AlignmentParameters
from veilsum_coordinator.methods.compile import compile_study
from veilsum_coordinator.methods.generating import GenerationParameters
from veilsum_coordinator.results import save_result
from veilsum_deploy.collections import single
from veilsum_deploy.datasets import packaged_dataset
from veilsum_deploy.simulation.dealing import Setting
from veilsum_deploy.simulation.study import Simulation, draft_of, simulate
from veilsum_privacy.encoder import Program
from veilsum_privacy.schema import Frozen

PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
STUDIES = [tomllib.loads(text) for text in re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]
SHARED = {"clip", "missing"}
TABLES: dict[str, type[Frozen]] = {
    "## Alignment": AlignmentParameters,
    "## Generation": GenerationParameters,
    **{f"## {name}": method.Parameters for name, method in METHODS.items() if name != "statistics"},
}


def rows(heading: str) -> dict[str, str]:
    """Default by parameter, as the tables of a section state them."""
    section = re.split(r"^## ", PAGE.split(f"\n{heading}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]
    tables = re.findall(
        r"^\| parameter \| default \| what \|\n\| --- \| --- \| --- \|\n((?:\|.*\|\n)+)", section, re.MULTILINE
    )
    lines = "".join(tables).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert all(len(row) == 3 for row in cells), heading
    return {row[0].strip("`"): row[1].strip("`") for row in cells}


@pytest.fixture(scope="module")
def axes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the result of the page's own study of axes, where its other studies look for it."""
    folder = tmp_path_factory.mktemp("page")
    digits = single(packaged_dataset("digits"))
    study = next(study for study in STUDIES if study["method"] == "pca")
    draft = draft_of(study, folder, digits.schema, source="page")
    outcome = simulate(
        Simulation(draft, digits, Setting(), 0, encryption=False), lambda text, share: None, lambda: 1_700_000_000
    )
    save_result(folder / "axes" / "run-1", outcome.runs[0].result)
    return folder


@pytest.mark.parametrize("study", STUDIES, ids=[study["name"] for study in STUDIES])
def test_every_study_of_the_page_compiles(study: dict[str, Any], axes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilsum_deploy.simulation.study.load_encoder", lambda path, declared: declared)
    schema = packaged_dataset(study["dataset"]).schema
    draft = draft_of(study, axes, schema, source=study["name"], program=Path("net.pt"))
    compiled = compile_study(
        draft.request,
        federation_id="0" * 64,
        coordinator="hub",
        participants=["a", "b", "c", "d"],
        clock=lambda: 1_700_000_000,
        random=SeededRandom(1),
    )
    assert compiled.method == study["method"]
    wanted = study["privacy"].get("epsilon")
    assert compiled.privacy.epsilon == (None if wanted is None else pytest.approx(wanted, rel=1e-4))
    assert isinstance(compiled.encoder, Program) == (study.get("encoder", {}).get("kind") == "program")


def test_every_method_has_a_study_on_the_page() -> None:
    assert {study["method"] for study in STUDIES} == set(METHODS)
    assert len({study["name"] for study in STUDIES}) == len(STUDIES) > len(METHODS)


@pytest.mark.parametrize("heading", TABLES)
def test_tables_hold_every_parameter_and_its_default(heading: str) -> None:
    fields = TABLES[heading].model_fields
    stated = rows(heading)
    assert set(stated) == set(fields) - SHARED
    for name, text in stated.items():
        default = fields[name].default
        if isinstance(default, str):
            assert text == f'"{default}"', name
        elif isinstance(default, int | float):
            assert text == str(default), name
        else:
            assert text, name


def test_parameters_that_methods_share() -> None:
    assert set(rows("## Parameters that all share")) == SHARED
    assert "It has no parameters." in PAGE.split("\n## statistics\n")[1].split("\n## ")[0]
    assert not METHODS["statistics"].Parameters.model_fields
    for name, method in METHODS.items():
        assert (set(method.Parameters.model_fields) >= SHARED) == (name != "statistics")
        if name != "statistics":
            assert method.Parameters.model_fields["missing"].default == "skip"
