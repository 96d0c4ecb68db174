"""What a site's check says of a study before the site's ledger exists, and of a coordinator that does not answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.federation import make_request, schema_of
from veilsum_deploy.cli.additions import asked_study
from veilsum_node.telemetry.endpoint import MetricsSettings
from veilsum_participant.checks import Check, CheckOutcome, SiteCheck
from veilsum_participant.settings.config import load_participant_config
from veilsum_privacy.study.schema import NumberColumn


def checks(
    directory: Path,
    budget: str,
    epsilon: float | None = 0.5,
    policy: str = "",
    metrics: dict[str, str] | None = None,
    **privacy: object,
) -> list[Check]:
    (directory / "participant.toml").write_text(
        f"""coordinator = "localhost:1"
[datasets.records]
path = "records.csv"
columns = ["x0", "x1", "y"]
most_records = 1000
[budgets.records]
epsilon = {budget}
delta = 1e-5
[policy]
noise = ["distributed", "none"]
{policy}
[policy.trusted]
b = "{"0" * 64}"
c = "{"1" * 64}"
"""
    )
    config = load_participant_config(directory / "participant.toml")
    request = make_request(schema_of(2), epsilon=epsilon, **privacy).model_copy(
        update={"participants": ("this-site", "b", "c")}
    )
    if metrics:
        config = config.model_copy(update={"metrics": MetricsSettings.model_validate(metrics)})
    return SiteCheck(config, lambda: 1_800_000_000, study=asked_study(request)).run()


def test_the_schema_that_an_analyst_sends_must_fit_the_files_first_line(tmp_path: Path) -> None:
    """A site's operator hears it from the check, before a study is refused for it; so of rows that are not used."""
    text = 'coordinator = "localhost:1"\n[datasets.records]\npath = "records.csv"\n'
    schema = schema_of(2).model_copy(update={"header": False, "order": ("x0", "x1", "y")})
    (tmp_path / "records.csv").write_text('0.1,0.2,0\n0.1,"0.2,0\n0.1,0.2\n0.3,0.4,1\n')
    for line, expected in (("", (CheckOutcome.FAILED,)), ("header = false\n", (CheckOutcome.WARNING,) * 2)):
        (tmp_path / "participant.toml").write_text(text + line)
        config = load_participant_config(tmp_path / "participant.toml")
        found = [
            item for item in SiteCheck(config, lambda: 0, schemas={"records": schema}).run() if item.check == "dataset records"
        ]
        assert tuple(item.status for item in found) == expected
        told = "\n".join(f"{item.detail} {item.advice}" for item in found)
        if line:
            assert "4 records; 3 of 3 columns as the schema says" in told
            assert "whole rows: quotation mark not closed: 1 (row 2 (line 2)); the row is not used; a cell cannot" in told
            assert "wrong number of cells: 1 (row 3 (line 3)); the row is not used" in told
        else:
            assert "header" in told
            assert "participant.toml" in told


def test_each_column_has_one_line_and_an_agreed_substitute_is_no_warning(tmp_path: Path) -> None:
    """Of a file with thousands of faults an operator reads as many lines as columns have any."""
    columns = tuple(
        NumberColumn(name=name, low=-1, high=1, impute=impute) for name, impute in (("x0", 0.0), ("x1", None), ("x2", None))
    )
    schema = schema_of(2).model_copy(update={"columns": columns})
    rows = ["x0,x1,x2,y,who", ",0,0,0,a", "0,9,0,1,a", ",oops,0,0,b", *["0,9,0,1,c"] * 2000, ",0,0,1,"]
    (tmp_path / "records.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "participant.toml").write_text(
        'coordinator = "localhost:1"\n[datasets.records]\npath = "records.csv"\nsubject = "who"\n'
        'columns = ["x0", "x1", "x2", "y"]\n'
    )
    config = load_participant_config(tmp_path / "participant.toml")
    found = [
        item for item in SiteCheck(config, lambda: 0, schemas={"records": schema}).run() if item.check == "dataset records"
    ]
    assert [(item.status.value, item.detail) for item in found] == [
        ("warning", "2,004 records; 2 of 4 columns as the schema says"),
        ("ok", "column 'x0': missing value: 3 (row 1 (line 2), row 3 (line 4), row 2004 (line 2005)); 0 is taken instead"),
        (
            "warning",
            "column 'x1': not a number: 1 (row 3 (line 4)); expected a number in [-1, 1]; "
            "out of bounds: 2,001 (row 2 (line 3), row 4 (line 5), row 5 (line 6), ...); expected a number in [-1, 1]",
        ),
        ("ok", "column 'who': missing value: 1 (row 2004 (line 2005)); the record counts as a person of its own"),
        (
            "warning",
            "whole rows: too many records: 1,004 (row 1001 (line 1002), ...); sums are cut off at what 1000 records can reach,"
            " counts and sums apart, so that means are biased: ask for a schema with a larger max_records, or"
            " state most_records with the dataset",
        ),
        ("ok", "4 persons, 2 of them with several records, 2,000 at most"),
    ]
    assert "protects the person" in found[-1].advice


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (0, [("warning", "too many records: 3"), ("warning", "7 records; 3 of 3 columns")]),
        (5, [("ok", "sums count for 4 of 5"), ("warning", "too many records: 2"), ("warning", "7 records; 3 of 3 columns")]),
        (7, [("ok", "7 records; 3 of 3 columns"), ("ok", "sums count for 4 of 7")]),
    ],
)
def test_more_records_than_a_schema_takes_are_a_warning_unless_the_site_states_them(
    tmp_path: Path, stated: int, expected: list[tuple[str, str]]
) -> None:
    (tmp_path / "records.csv").write_text("x0,x1,y\n" + "0,0,0\n" * 7)
    (tmp_path / "participant.toml").write_text(
        'coordinator = "localhost:1"\n[datasets.records]\npath = "records.csv"\ncolumns = ["x0", "x1", "y"]\n'
        f"most_records = {stated}\n"
    )
    schema = schema_of(2).model_copy(update={"max_records": 4})
    config = load_participant_config(tmp_path / "participant.toml")
    found = [
        item for item in SiteCheck(config, lambda: 0, schemas={"records": schema}).run() if item.check == "dataset records"
    ]
    told = [(item.status.value, item.detail) for item in found]
    assert len(told) == len(expected)
    assert all(any(status == kind and part in text for status, text in told) for kind, part in expected)


def of_study(found: list[Check]) -> list[tuple[CheckOutcome, str]]:
    return [(item.status, item.detail.split(":")[0]) for item in found if item.check == "study"]


BORNE = [(CheckOutcome.OK, "policy and budget allow it; it costs epsilon 0.5")]


@pytest.mark.parametrize(
    ("budget", "epsilon", "expected"),
    [
        ("0.51", 0.5, BORNE),
        ("0.5", 0.75, [(CheckOutcome.FAILED, "budget-exceeded")]),
        ("0.5", None, [(CheckOutcome.FAILED, "budget-exceeded")]),
        ('"unlimited"', 0.5, BORNE),
        ('"unlimited"', None, [(CheckOutcome.OK, "policy and budget allow it; it gives no guarantee")]),
    ],
)
def test_a_study_beyond_the_first_budget_would_be_refused(
    tmp_path: Path, budget: str, epsilon: float | None, expected: list[tuple[CheckOutcome, str]]
) -> None:
    assert of_study(checks(tmp_path, budget, epsilon)) == expected
    assert not (tmp_path / "participant.db").exists()


def test_a_delta_that_guarantees_too_little_is_a_warning(tmp_path: Path) -> None:
    """A study's by the public bound of its schema, 1,000 records; a budget's by the policy."""
    found = checks(tmp_path, "0.51", 0.5, "max_delta = 0.3", delta=1.1e-3)
    warned = [item for item in found if item.status is CheckOutcome.WARNING and item.check == "study"]
    assert ["Delta 0.0011 is above 1 / 1,000, the schema's max_records" in item.detail for item in warned] == [True]
    (budget,) = (item for item in found if item.check == "budget records")
    assert budget.status is CheckOutcome.OK
    found = checks(tmp_path, "0.51", 0.5, "max_delta = 1e-6")
    assert of_study(found) == [(CheckOutcome.FAILED, "epsilon-too-large")]
    (budget,) = (item for item in found if item.check == "budget records")
    assert (budget.status, "delta is above policy.max_delta, 1e-06" in budget.detail) == (CheckOutcome.WARNING, True)


def test_every_reason_is_named_at_once(tmp_path: Path) -> None:
    """As the participant would refuse it, by the same functions."""
    policy = 'methods = ["fedcgs"]\nmin_cohort = 4\nunits = ["subject"]\nmax_epsilon = 0.1\ncohort_difference = ["strict"]'
    found = of_study(checks(tmp_path, "0.2", 0.5, policy))
    codes = ("method-not-allowed", "cohort-too-small", "cohort-changed", "epsilon-too-large", "budget-exceeded",
             "unit-not-accepted")  # fmt: skip
    assert found == [(CheckOutcome.FAILED, code) for code in codes]


def test_nothing_listens_is_said_once(tmp_path: Path) -> None:
    found = {item.check: item for item in checks(tmp_path, "1.0")}
    assert "Nothing listens" in found["TCP connection"].detail
    for name in ("TLS", "protocol"):
        assert (found[name].status, found[name].detail) == (CheckOutcome.FAILED, "not tried without a TCP connection")
    assert sum("Nothing listens" in item.detail for item in found.values()) == 1


def test_a_budget_that_is_not_set_is_named(tmp_path: Path) -> None:
    found = {item.check: item for item in checks(tmp_path, "1.0", policy="")}
    assert (found["budget records"].status, found["budget records"].detail) == (
        CheckOutcome.OK,
        "epsilon 1 at delta 1e-05: 0 spent and set aside, 0 if enrolled studies use all that they may",
    )


def test_what_is_shared_and_served_is_said(tmp_path: Path) -> None:
    found = {item.check: (item.status, item.detail) for item in checks(tmp_path, "1.0")}
    assert found["metrics endpoint"] == (CheckOutcome.OK, "none")
    assert found["shared metrics"] == (CheckOutcome.OK, "none: nothing is told")
    policy, served = 'share_metrics = ["timings", "software"]', {"listen": "127.0.0.1:9465"}
    found = {item.check: (item.status, item.detail) for item in checks(tmp_path, "1.0", policy=policy, metrics=served)}
    assert found["metrics endpoint"] == (CheckOutcome.OK, "127.0.0.1:9465, loopback only")
    told = "the coordinator is told: name and version of this software; mean time of each step of a round, rounded up to "
    told += "1/8 s or a power of two of it"
    assert found["shared metrics"] == (CheckOutcome.OK, told)


def test_an_endpoint_that_would_be_open_to_others_is_named(tmp_path: Path) -> None:
    found = {item.check: item for item in checks(tmp_path, "1.0", metrics={"listen": "0.0.0.0:9465"})}
    assert found["metrics"].status is CheckOutcome.FAILED
    assert "not a loopback address" in found["metrics"].detail
    assert "metrics.token_file" in found["metrics"].advice
