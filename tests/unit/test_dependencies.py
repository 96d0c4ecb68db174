"""docs/dependencies.md lists what is installed at run time, with version and licence; an audit that learnt nothing fails."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from veilsum_proto import SOFTWARE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")


def load_audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit_tool", ROOT / "deploy" / "tools" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


AUDIT = load_audit()


def listed(heading: str) -> dict[str, list[str]]:
    """The rows of the table under a heading, by package."""
    part = re.split(r"^## ", PAGE.partition(f"## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in part.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row for row in rows}


SITE, REST = listed("What a participant installs"), listed("What a coordinator installs besides")


def licence(name: str) -> str:
    """What an installed package states."""
    metadata = distribution(name).metadata
    if metadata.get("License-Expression"):
        return str(metadata["License-Expression"])
    classes = [text.rpartition(" :: ")[2] for text in metadata.get_all("Classifier") or [] if text.startswith("License ::")]
    return " / ".join(classes) or str(metadata.get("License")).splitlines()[0]


def test_the_page_lists_every_package_with_its_version_and_licence() -> None:
    site, whole = AUDIT.closure(ROOT / "participant" / "pyproject.toml"), AUDIT.closure(ROOT / "pyproject.toml")
    assert set(SITE) == site
    assert set(REST) == whole - site
    pins = AUDIT.pins(ROOT / "constraints.txt")
    for name, row in {**SITE, **REST}.items():
        assert len(row) == 7, name
        assert all(row), name
        found = distribution(name)
        native = any(".so" in file.suffixes for file in found.files or [])
        assert row[1] == pins[name] == found.version.partition("+")[0], name
        assert row[4] == ("yes" if native else "no"), name
        assert row[5] == licence(name), name


def test_what_reads_strangers_bytes_is_named_where_its_confinement_is() -> None:
    confined = PAGE.partition("## Where hostile bytes are read")[2].partition("\n## ")[0].lower()
    readers = {name for name, row in {**SITE, **REST}.items() if row[3].startswith("**peers'**")}
    assert readers >= {"grpcio", "protobuf", "cryptography", "tenseal", "safetensors", "pydantic"}
    for name in readers - {"grpcio-health-checking", "grpcio-reflection"}:
        assert name in confined, name


def test_every_package_that_is_installed_at_run_time_is_pinned() -> None:
    pins = AUDIT.pins(ROOT / "constraints.txt")
    assert AUDIT.closure(ROOT / "pyproject.toml") - set(pins) == set()


def test_a_build_of_torch_for_cuda_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = AUDIT.closure(ROOT / "pyproject.toml")

    def with_cuda(name: str) -> SimpleNamespace:
        more = ["nvidia-cublas", "cuda-bindings==13.0", "triton==3.7"] if name == "torch" else []
        return SimpleNamespace(requires=[*(distribution(name).requires or ()), *more])

    monkeypatch.setattr(AUDIT, "distribution", with_cuda)
    assert AUDIT.closure(ROOT / "pyproject.toml") == expected


def report(**changes: object) -> dict[str, object]:
    known = {"name": "Example_Package", "version": "1.0", "vulns": []}
    return {"dependencies": [{**known, **changes}]}


WANTED = {"example-package": "1.0"}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({}, "nothing could be learnt of 1 of 1"),
        ({"dependencies": []}, "nothing could be learnt"),
        ({"dependencies": [{"name": "example-package", "skip_reason": "not found"}]}, "nothing could be learnt"),
        (report(version="1.1"), "nothing could be learnt"),
        (report(skip_reason="x"), "nothing could be learnt"),
        (report(vulns=[{"id": "PYSEC-1", "fix_versions": ["1.1"]}]), "PYSEC-1, fixed in 1.1"),
        (report(vulns=[{"id": "PYSEC-2", "fix_versions": []}]), "PYSEC-2, fixed in none"),
    ],
)
def test_an_audit_that_learnt_nothing_fails(found: dict[str, object], words: str) -> None:
    faults = AUDIT.judge(found, WANTED)
    assert len(faults) == 1
    assert words in faults[0]


def test_an_audit_that_found_nothing_passes() -> None:
    assert AUDIT.judge(report(), WANTED) == []


@pytest.mark.parametrize("program", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho '{'\n", None])
def test_a_database_that_is_away_is_no_good_news(
    program: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    auditor = tmp_path / "pip-audit"
    if program is not None:
        auditor.write_text(program)
        auditor.chmod(0o755)
    found = AUDIT.ask(auditor, ROOT / "constraints.txt", tmp_path / "out.json")
    assert AUDIT.judge(found, WANTED)
    assert "gave no report" in capsys.readouterr().err


@pytest.mark.system
@pytest.mark.parametrize("role", ["participant", "coordinator"])
def test_the_bills_list_what_is_installed(role: str, tmp_path: Path) -> None:
    pins = AUDIT.pins(ROOT / "constraints.txt")
    bill = json.loads(AUDIT.write_bill(role, pins, tmp_path, validate=False).read_text())
    found = {AUDIT.canonical(item["name"]): item["version"] for item in bill["components"]}
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert found == {name: pins[name] for name in AUDIT.closure(AUDIT.BILLS[role])}


def test_the_software_says_the_version_that_it_is() -> None:
    """In greetings and in the manifests of results, by which a later version knows what made them."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"veilsum {version}" == SOFTWARE
