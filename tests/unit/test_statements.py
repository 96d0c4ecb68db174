"""What a study states in words: bounded, printable, signed, shown wherever the study is described, demanded by policy."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.federation import DATASET, make_request, schema_of
from support.studies import agreed
from veilsum.api.options import Options
from veilsum.request import StudyRequest, load_study_request
from veilsum_coordinator.service.runner import study_fields
from veilsum_node.canonical import canonical
from veilsum_node.errors import ConfigurationError, HostileInput, RefusalCode
from veilsum_participant.protocol.policy import study_faults
from veilsum_participant.settings.config import DatasetConfig, ParticipantConfig, Policy
from veilsum_privacy.study.study import STATEMENTS, Statement, Study, parse_study, study_digest
from veilsum_privacy.tasks.agreed import AgreedStudy

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text(encoding="utf-8"))
SAID: dict[str, str] = {
    "purpose": "Where do patients with Müller's disease live?",
    "reference": "Ethics vote 2026-117",
    "legal_basis": "Art. 9(2)(j) GDPR",
    "contact": "ana@example.org",
}
SUBSETS = [subset for size in range(5) for subset in combinations(STATEMENTS, size)]
UNFIT = [
    "",
    " ",
    " x",
    "x ",
    "a\nb",
    "a\tb",
    "\x1b[2J",
    "a\u202eb",
    "a\u2028b",
    "a\u200bb",
    "\x00",
    "x" * 1001,
    7,
    None,
    ["x"],
]


def stating(**said: str) -> Study:
    return agreed(make_request(schema_of(2)).model_copy(update=said), "abc", now=1_800_000_000)


@pytest.mark.parametrize("subset", SUBSETS)
def test_what_is_stated_is_signed_and_nothing_else_has_bytes(subset: tuple[Statement, ...]) -> None:
    said = {name: SAID[name] for name in subset}
    study = stating(**said)
    assert (study.statements, list(study.statements)) == (said, list(subset))
    assert parse_study(study.to_bytes()) == study
    plain = json.loads(study.to_bytes())
    assert {name: plain[name] for name in STATEMENTS if name in plain} == said
    for name in subset:  # each word of it is under the analyst's signature
        changed = canonical({**plain, name: "another"})
        assert study_digest(changed) != study_digest(study.to_bytes())
    about = study_fields(study, bytes(32))
    assert {name: about[name] for name in about if name in STATEMENTS} == said


@pytest.mark.parametrize("kind", ["studies", "former"])
def test_studies_of_earlier_versions_keep_their_bytes(kind: str) -> None:
    for item in GOLDEN[kind].values():
        data = item["study"].encode()
        assert parse_study(data).statements == {}
        assert parse_study(data).to_bytes() == data


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("value", UNFIT)
def test_a_signed_text_that_is_no_plain_line_is_refused(name: str, value: object) -> None:
    plain = json.loads(stating().to_bytes())
    with pytest.raises(HostileInput):
        parse_study(canonical({**plain, name: value}))


@given(st.text(max_size=1200))
def test_no_text_reaches_a_study_but_one_printable_line(text: str) -> None:
    """What an analyst writes over several lines becomes one; what cannot is refused, and named."""
    try:
        request = StudyRequest.model_validate({**make_request(schema_of(2)).model_dump(by_alias=True), "purpose": text})
        taken, told = request.purpose, ""
    except ValueError as error:
        taken, told = None, str(error)
    joined = " ".join(text.split())
    fits = 0 < len(joined) <= 1000 and joined.isprintable()
    assert taken == (joined if fits else None)
    assert fits or "purpose" in told


def test_a_study_file_states_them(tmp_path: Path) -> None:
    schema = '[data]\nmax_records = 10\ncolumns = [{ name = "x", kind = "number", low = 0, high = 1 }]\n'
    head = 'name = "s"\nmethod = "statistics"\ndataset = "d"\npurpose = """\nFirst line,\n  second line.\n"""\n'
    path = tmp_path / "study.toml"
    path.write_text(f"{head}[privacy]\nepsilon = 1.0\n{schema}")
    assert load_study_request(path).purpose == "First line, second line."
    path.write_text(head.replace("First", "\\u0007First") + f"[privacy]\nepsilon = 1.0\n{schema}")
    with pytest.raises(ConfigurationError, match=r"purpose.*printable"):
        load_study_request(path)


def test_the_python_api_takes_every_statement() -> None:
    assert set(STATEMENTS) <= set(get_type_hints(Options))
    assert set(get_args(Statement)) == set(STATEMENTS)


def found(study: Study | AgreedStudy, **policy: Any) -> list[Any]:
    values = {"analysts": ("*",), "trusted": dict.fromkeys("bc", "1" * 64), "min_cohort": 2} | policy
    dataset = DatasetConfig(path=Path("records.csv"), columns=("x0", "x1", "y"))
    config = ParticipantConfig(coordinator="localhost:1", datasets={DATASET: dataset}, policy=Policy(**values))
    agreed = study if isinstance(study, AgreedStudy) else AgreedStudy(study)
    return list(study_faults(agreed, "ana", config, "a", 1e-5))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stated", SUBSETS)
def test_a_policy_refuses_what_lacks_what_it_demands(stated: tuple[Statement, ...]) -> None:
    study = AgreedStudy(stating(**{name: SAID[name] for name in stated}))
    for required in SUBSETS:
        refusals = found(study, require=required)
        missing = [name for name in required if name not in stated]
        assert [item.code for item in refusals] == ([RefusalCode.PURPOSE] if missing else [])
        for item in refusals:
            told = f"{item.message} {item.advice}"
            assert [name for name in STATEMENTS if name in item.message.split(",")[0]] == missing or len(missing) > 2
            assert all(name in told for name in missing)
            assert "policy.require" in item.message
            assert "study.toml" in item.advice


def test_a_policy_cannot_demand_what_nobody_can_state() -> None:
    with pytest.raises(ValueError, match="require"):
        Policy(require=("motive",))  # type: ignore[arg-type]
