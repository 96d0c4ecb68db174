"""Results as CSV, LaTeX and HTML are read back by other programs: every name and number arrives, whatever is in it."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import lxml.html
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pylatexenc.latex2text import LatexNodes2Text
from pylatexenc.latexwalker import LatexEnvironmentNode, LatexWalker

from support.commands import shown
from support.studies import run, shifted_sites
from veilsum.api.results import StudyResult, open_result
from veilsum.cli.display import _shown
from veilsum.exports import all_tables, cell, export_result, figures_of, plain_table, to_csv
from veilsum_deploy.simulation.report import _markdown
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse
from veilsum_privacy.results.result import Result, save_result

ODD = [
    "plain",
    "<script>alert('x')</script> & \"more\"",
    r"100% of $5_a #1 {b} ~c ^d \input{e}",
    "[0, 10)",
    "two\nlines,\tand; commas",
    "öst – ≤ 3 … ±",
    "]]> --> \\\\ & &amp;",
]


def figure(value: float) -> dict[str, float]:
    return {"value": value, "noise_error": 0.5, "sampling_error": 0.25, "low": value - 1.5, "high": value + 1.5}


ROWS: list[dict[str, Any]] = [
    *({"level": name, "mean": figure(10.0 + place), "known": place % 2 == 0} for place, name in enumerate(ODD)),
    {"level": "rare", "mean": {"below": 5}, "known": None},
    {"level": "none", "mean": {"not_estimable": "no <events>"}, "known": None},
]
RESULT = Result(
    "statistics",
    {
        "means <b> & more": ROWS,
        "records": figure(812.0),
        "weights": {"share_of_noise": 0.03, "notes": ["a"]},
        "model": "mlp <1>",
        "names": ["a", "b"],
        "converged": True,
    },
)
SHOWN = {"records": "812 (810.5 to 813.5)", "weights share_of_noise": "0.03", "model": "mlp <1>", "converged": "yes"}


def one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def kept(tmp_path: Path) -> StudyResult:
    save_result(tmp_path / "result", RESULT, study={"name": "trial <i>", "digest": "ab" * 32})
    return open_result(tmp_path / "result")


def test_csv_has_every_name_and_number() -> None:
    read = list(csv.DictReader(io.StringIO(to_csv(ROWS))))
    assert [row["level"] for row in read] == [*ODD, "rare", "none"]
    assert [float(row["mean_low"]) for row in read[: len(ODD)]] == [8.5 + place for place in range(len(ODD))]
    assert (read[-2]["mean"], read[-2]["mean_note"]) == ("", "< 5")
    assert read[-1]["mean_note"] == "not estimable: no <events>"
    again = pd.read_csv(io.StringIO(to_csv(figures_of(RESULT)))).set_index("name")
    assert set(again.index) == set(SHOWN)
    assert float(again.loc["records", "value"]) == 812.0
    assert again.loc["records", "value_noise_error"] == 0.5


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
@example(19723.4, 2.2, 2.4)
@example(1953.27, 0.17, 0.16)
@example(123456.0, 156.0, 156.0)
@example(99999.6, 20.0, 20.0)
@example(0.0, 1e-6, 1e-6)
def test_a_figure_is_shown_with_the_digits_that_its_interval_has(value: float, below: float, above: float) -> None:
    """A mean date, or a count above 9,999, is not rounded to four digits: what is shown is off by a 50th of the interval's
    length at most, or has four digits."""
    exact = {**figure(value), "low": value - below, "high": value + above}
    for text in (cell(exact), _shown(exact)):
        assert "e+0" not in text
        shown = [float(part) for part in re.sub(r"[(),]|to", " ", text).split()]
        for told, own in zip(shown, (value, value - below, value + above), strict=True):
            assert abs(told - own) <= max(below, above) / 50.0 or told == pytest.approx(own, rel=5.001e-4)


def test_a_number_keeps_the_digits_before_its_point() -> None:
    assert [cell(number) for number in (123456.7, 99999.6, 0.0123449, 3.0)] == ["123457", "99999.6", "0.01234", "3"]
    assert _shown(1234567.4) == "1234567"
    about = {"study": "s", "method": "statistics", "dataset": "d", "sites": {"a": 1}, "partition": "p", "epsilon": None}
    rows = [{"quantity": "records", "mean": 1234567.4, "std": 2.0, "std_error": 1.0, "runs": 2}]
    simulated = _markdown({**about, "delta": 0.0, "repeat": 2, "encryption": True, "table": rows})
    assert "| records | 1234567 | 2 | 1 | 2 |" in simulated


def latex_rows(text: str) -> list[list[str]]:
    """The cells of a document's one table, as a LaTeX parser finds them and as they would be shown."""
    nodes, _, _ = LatexWalker(text, tolerant_parsing=False).get_latex_nodes()
    (table,) = (node for node in nodes if isinstance(node, LatexEnvironmentNode))
    (tabular,) = (node for node in table.nodelist if isinstance(node, LatexEnvironmentNode))
    assert (table.environmentname, tabular.environmentname) == ("table", "tabular")
    body = "".join(node.latex_verbatim() for node in tabular.nodelist).partition(r"\toprule")[2]
    show = LatexNodes2Text(strict_latex_spaces=True, math_mode="text").latex_to_text
    rows = []
    for line in body.partition(r"\bottomrule")[0].replace(r"\midrule", "").split("\n"):
        if not line:
            continue
        assert line.endswith(r" \\")
        cells, _, _ = LatexWalker(line.removesuffix(r" \\"), tolerant_parsing=False).get_latex_nodes()
        parts = [""]
        for node in cells:
            if node.latex_verbatim() == "&":
                parts.append("")
            else:
                parts[-1] += node.latex_verbatim()
        rows.append([show(part).strip() for part in parts])
    return rows


def test_latex_shows_every_name_as_it_is() -> None:
    text = plain_table(ROWS, RESULT.method + " 100% & <more>").to_latex()
    rows = latex_rows(text)
    assert rows[0] == ["Level", r"Mean (95% CI)", "Known"]
    names = [row[0].replace("…", "...").replace("ˆ", "^") for row in rows[1:]]
    assert names == [one_line(name).replace("…", "...") for name in [*ODD, "rare", "none"]]
    assert rows[1][1] == "10 (8.5 to 11.5)"
    assert rows[-1][1] == "not estimable: no <events>"
    assert r"\caption{statistics 100\% \& $<$more$>$}" in text


def test_a_row_that_begins_with_a_bracket_is_no_option_of_the_rule_before_it() -> None:
    lines = plain_table([{"range": "[0, 10)"}, {"range": "[10, 20)"}], "ranges").to_latex().splitlines()
    assert not [line for line in lines if line.startswith("[")]


@pytest.mark.filterwarnings("ignore:Glyph 9")  # of the picture
def test_html_holds_names_as_text_and_no_element_of_their_making(kept: StudyResult) -> None:
    page = lxml.html.document_fromstring(kept.to_html())
    assert {element.tag for element in page.iter() if isinstance(element.tag, str)} <= {
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "table", "thead", "tbody", "tr", "th", "td",
    } | {element.tag for svg in page.iter("svg") for element in svg.iter() if isinstance(element.tag, str)}  # fmt: skip
    assert not list(page.iter("script"))
    means, summary = page.iter("table")
    cells = [[cell.text_content() for cell in row.iter("td")] for row in means.iter("tr")][1:]
    assert [row[0] for row in cells] == [*ODD, "rare", "none"]
    assert cells[0][1:] == ["10 (8.5 to 11.5)", "yes"]
    assert [heading.text_content() for heading in page.iter("h2")] == ["means <b> & more", "summary"]
    pairs = [tuple(cell.text_content() for cell in row.iter("td")) for row in summary.iter("tr")][1:]
    assert pairs == list(SHOWN.items())
    told = next(page.iter("p")).text_content()
    assert "name trial <i>" in told
    assert "ab" * 32 in told
    one = lxml.html.fragment_fromstring(kept.to_html("means <b> & more"))
    assert one.tag == "table"
    assert len(list(one.iter("tr"))) == len(ROWS) + 1


def test_what_stands_outside_of_tables_is_a_table_of_its_own(kept: StudyResult, tmp_path: Path) -> None:
    assert {row["name"]: row["value"] for row in kept.rows("summary")} == {
        "records": figure(812.0),
        "weights share_of_noise": 0.03,
        "model": "mlp <1>",
        "converged": True,
    }
    assert kept.to_pandas("summary").set_index("name").loc["records", "value_noise_error"] == 0.5
    assert kept.to_arrow("summary").column("value").type == pa.string()
    assert "812 (810.5 to 813.5)" in kept.to_latex("summary")
    assert "summary" not in kept.tables
    with pytest.raises(Misuse, match="no table"):
        open_result(save_result(tmp_path / "bare", Result("x", {"a": ROWS})).parent).rows("summary")
    named = Result("x", {"summary": [{"a": 1}], "records": 3})
    assert all_tables(named) == {"summary": [{"a": 1}]}


def test_a_models_result_is_written_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has few tables or none: what it tells is in its figures."""
    result = run("fedcgs", {}, shifted_sites(150), epsilon=4.0)
    save_result(tmp_path / "result", result, study={"name": "trial", "digest": "cd" * 32})
    words = ["study", "export", str(tmp_path / "result"), "--out", str(tmp_path / "out"), "--formats", "csv,latex,html,onnx"]
    files = {Path(name).name for name in shown(capsys, *words)["files"]}
    assert files == {"classes.csv", "classes.tex", "summary.csv", "summary.tex", "result.html", "model.onnx"}
    read = pd.read_csv(tmp_path / "out" / "summary.csv").set_index("name")["value"]
    assert float(read["cohort"]) == 4
    assert float(read["weights share_of_noise"]) == pytest.approx(result.summary["weights"]["share_of_noise"])
    assert latex_rows((tmp_path / "out" / "classes.tex").read_text())[0][0] == "Class"


def test_what_cannot_be_written_is_refused(kept: StudyResult, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No format is called 'docx'"):
        export_result(RESULT, tmp_path / "out", ["docx"])
    with pytest.raises(Misuse, match="only read"):
        kept.export(tmp_path / "out", ["onnx"])
    assert not (tmp_path / "out").exists()
    (kept.directory / "manifest.json").write_text("{}")
    with pytest.raises(HostileInput, match="no readable result"):
        _ = kept.about
