"""Tables and pictures for papers: their figures are pandas' own, and every program reads them back, whatever names hold."""

from __future__ import annotations

import io
import math
import re
import string
import unicodedata
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import lxml.etree
import lxml.html
import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.text import Text
from pylatexenc.latex2text import LatexNodes2Text
from pylatexenc.latexwalker import LatexWalker
from scipy.stats import chi2

import veilsum
from veilsum.exports import printed_tables
from veilsum.papers import SUBGROUPS, Line, Names, PaperTable, _cost, documents_of, p_text, paper_tables, ratio_text, terms_of
from veilsum.pictures import Drawn, draw
from veilsum.texts import escaped_tex
from veilsum_node.errors import Misuse

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (0.0, "<.001"), (1e-300, "<.001"), (0.00099999, "<.001"), (0.001, ".001"), (0.0049, ".005"), (0.00951, ".010"),
        (0.01, ".01"), (0.0349, ".03"), (0.0449, ".04"), (0.046, ".046"), (0.0496, ".049"), (0.04999, ".049"),
        (0.05, ".05"), (0.051, ".05"),
        (0.5, ".50"), (0.989, ".99"), (0.99, ".99"), (0.991, ">.99"), (1.0, ">.99"), (None, "—"), (math.nan, "—"),
    ],
)  # fmt: skip
def test_p_values_are_printed_as_journals_print_them(p: float | None, text: str) -> None:
    assert p_text(p) == text


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.floats(0.0, 1.0))
def test_no_p_value_is_printed_on_the_other_side_of_a_level(p: float) -> None:
    text = p_text(p)
    if text[0] not in "<>":
        assert abs(float(text) - p) <= 0.0051
        assert (float(text) < 0.05) == (p < 0.05)
    assert (text == "<.001") == (p < 0.001)


# -- against pandas --------------------------------------------------------------------------------------------------------


def patients(n: int) -> pd.DataFrame:
    rng = np.random.default_rng(11)
    age, arm = rng.normal(62, 12, n).clip(20, 90).round(1), rng.choice(["no", "yes"], n)
    died = rng.random(n) < 1 / (1 + np.exp(1.5 - 0.7 * (arm == "yes") - 0.02 * (age - 60)))
    frame = pd.DataFrame({
        "age": age, "marker": rng.lognormal(1.0, 0.8, n).clip(0.1, 60).round(3), "arm": arm, "sex": rng.choice(["f", "m"], n),
        "stage": rng.choice(["I", "II", "III"], n, p=[0.5, 0.3, 0.2]), "died": np.where(died, "yes", "no"),
        "time": rng.uniform(0.1, 9.9, n).round(2),
    })  # fmt: skip
    frame.loc[rng.choice(n, n // 20, replace=False), "stage"] = None
    return frame


def category(name: str, label: str, *levels: str) -> dict[str, Any]:
    return {"kind": "category", "name": name, "label": label, "categories": list(levels)}


def number(name: str, label: str, low: float, high: float, unit: str) -> dict[str, Any]:
    return {"kind": "number", "name": name, "label": label, "low": low, "high": high, "unit": unit}


SCHEMA: dict[str, Any] = {
    "max_records": 1000,
    "columns": [
        number("age", "Age", 20, 90, "years"), number("marker", "Marker <M> & co", 0, 60, "µg/L"),
        category("arm", "Hormone therapy", "no", "yes"), category("sex", "Sex", "f", "m"),
        category("stage", "Stage_1 50%", "I", "II", "III"), category("died", "Death", "no", "yes"),
        number("time", "Follow-up", 0, 10, "years"),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return patients(1500)


@pytest.fixture(scope="module")
def federation(frame: pd.DataFrame) -> Iterator[Any]:
    with veilsum.simulate(frame, SCHEMA, sites=3, seed=2) as made:
        yield made


@pytest.fixture(scope="module")
def described(federation: Any) -> Any:
    patients = federation.dataset(noise="none")
    one = patients.table(["age", "marker", "sex", "stage"], by="arm", at=[0.25, 0.5, 0.75])
    curve = patients.survival("time", event="died", censored="no", edges={"from": 0, "to": 8, "steps": 8}, by="arm")
    return patients.statistics(one, curve).run(progress=False)


def test_a_table_one_is_the_frames(described: Any, frame: pd.DataFrame) -> None:
    table = described.paper(nonnormal=["marker"])
    groups = [frame, *(frame[frame.arm == arm] for arm in ("no", "yes"))]
    assert table.head == (
        "Characteristic", f"Overall (n = {len(frame):,})", f"Hormone therapy: no (n = {len(groups[1]):,})",
        f"Hormone therapy: yes (n = {len(groups[2]):,})", "P value",
    )  # fmt: skip
    found = {line.name: line.cells for line in table.lines}
    assert list(found) == [
        "Age, years, mean (SD)", "Age, years, median [IQR]", "Marker <M> & co, µg/L, median [IQR]", "Sex, n (%)", "f", "m",
        "Stage_1 50%, n (%)", "I", "II", "III", "Missing",
    ]  # fmt: skip
    for place, own in enumerate(groups):
        assert found["Age, years, mean (SD)"][place] == f"{own.age.mean():.1f} ({own.age.std():.1f})"
        for level in ("f", "m"):
            assert found[level][place] == f"{(own.sex == level).sum()} ({100 * (own.sex == level).mean():.1f})"
        missing = own.stage.isna()
        assert found["Missing"][place] == f"{missing.sum()} ({100 * missing.mean():.1f})"
        told = found["Marker <M> & co, µg/L, median [IQR]"][place].replace("[", "").replace("]", "").replace("to", "").split()
        np.testing.assert_allclose([float(each) for each in told], own.marker.quantile([0.5, 0.25, 0.75]), atol=0.5)
    assert all(found[name][-1] == "" for name in ("f", "m", "I", "Missing"))
    assert all(found[name][-1] for name in ("Age, years, mean (SD)", "Sex, n (%)"))
    assert table.notes == ("P values are of tests of equal means (Welch) and independence (chi-squared).",)  # exact: no noise


@pytest.mark.parametrize("over", [["age", "marker", "sex"], ["age", "marker"]])
def test_numbers_that_are_missing_have_a_row_of_their_own(frame: pd.DataFrame, over: list[str]) -> None:
    lacking = frame.drop(columns=["died", "time"]).assign(stage="I")
    lacking.loc[lacking.index % 11 == 0, "marker"] = np.nan
    with veilsum.simulate(lacking, {**SCHEMA, "columns": SCHEMA["columns"][:5]}, sites=3, seed=2) as made:
        exact = made.dataset(noise="none").table(over, by="arm", at=[0.25, 0.5, 0.75]).run(progress=False)
        noised = made.dataset(epsilon=3.0).table(over, by="arm").run(progress=False).paper()
    for nonnormal in ([], ["marker"]):
        lines = exact.paper(nonnormal=nonnormal).lines
        (place,) = [place for place, line in enumerate(lines) if line.name == "Missing"]
        assert "Marker" in lines[place - 1].name
        own = [frame.index % 11 == 0, frame.arm != "", frame.arm == "no", frame.arm == "yes"]
        told = [f"{(own[0] & arm).sum()} ({100 * own[0][arm].mean():.1f})" for arm in own[1:]]
        assert lines[place].cells == (*told, "")
    (line,) = [after for line, after in pairwise(noised.lines) if "Marker" in line.name and after.name == "Missing"]
    assert [int(cell.split()[0]) for cell in line.cells[:3]] == pytest.approx(
        [(own[0] & arm).sum() for arm in own[1:]], abs=40
    )


@pytest.fixture(scope="module")
def lacking(frame: pd.DataFrame) -> Iterator[Any]:
    """All columns lack values, in other records each, but one of which a public value stands for them."""
    rng, absent = np.random.default_rng(5), frame.copy()
    for place, name in enumerate(("age", "marker", "arm", "sex", "died", "time")):
        absent.loc[rng.random(len(absent)) < 0.04 * (place + 1), name] = None
    columns = [{**column, **({"impute": 5.0} if column["name"] == "time" else {})} for column in SCHEMA["columns"]]
    with veilsum.simulate(absent, {**SCHEMA, "columns": columns}, sites=3, seed=2) as made:
        yield made, absent.assign(time=absent.time.fillna(5.0))


OVERS = [["age", "marker"], ["age", "time"], ["sex", "stage"], ["age", "sex", "time"], ["age"], ["died"]]


@pytest.mark.parametrize("over", OVERS, ids="-".join)
@pytest.mark.parametrize("by", [["arm"], ["arm", "died"], []], ids="-".join)
def test_all_groups_together_and_what_is_missing_are_pandas_own(lacking: Any, over: list[str], by: list[str]) -> None:
    """Of the records that have a group: counts, means, deviations and quartiles to the digits that are printed."""
    made, absent = lacking
    over = [name for name in over if name not in by] or ["age"]
    asked = made.dataset(noise="none").table(over, by=by, at=[0.25, 0.5, 0.75])
    result = asked.run(progress=False)
    own, table = absent.dropna(subset=by), result.paper()
    assert table.head[1].startswith("Overall (n = " if by else "All (n = ")
    sized = any(name in ("sex", "stage", "died") for name in over) or len(over) > 1
    assert not sized or table.head[1].endswith(f"(n = {len(own):,})")
    rows = iter(table.lines)
    for name in over:
        first = next(rows)
        if pd.api.types.is_numeric_dtype(own[name]):
            digits = 1 if own[name].std() >= 1.0 else 2
            assert first.cells[0] == f"{own[name].mean():,.{digits}f} ({own[name].std():,.{digits}f})"
            told = re.findall(r"[\d.]+", next(rows).cells[0])
            width = {"age": 70, "marker": 60, "time": 10}[name] / 128
            np.testing.assert_allclose([*map(float, told)], own[name].quantile([0.5, 0.25, 0.75]), atol=width)
        else:
            for level in next(column["categories"] for column in SCHEMA["columns"] if column["name"] == name):
                assert next(rows).cells[0] == f"{(own[name] == level).sum():,} ({100 * (own[name] == level).mean():.1f})"
        if name != "time" and sized:
            line = next(rows)
            assert (line.name, line.indent) == ("Missing", 1)
            assert line.cells[0] == f"{own[name].isna().sum()} ({100 * own[name].isna().mean():.1f})"
    assert next(rows, None) is None


def test_a_public_fact_says_whether_a_row_of_missing_values_is_printed(lacking: Any, frame: pd.DataFrame) -> None:
    """Whatever the noise: never of what is imputed or where the study leaves them out, else always, even where none is."""
    made, _ = lacking
    over = ["age", "marker", "sex", "time"]
    for epsilon in (0.05, 0.05, 0.05, 5.0):
        lines = made.dataset(epsilon=epsilon).table(over, by="arm").run(progress=False).paper().lines
        assert [line.name for line in lines].count("Missing") == 3
        lines = made.dataset(epsilon=epsilon).table(over, by="arm", missing="drop").run(progress=False).paper().lines
        assert "Missing" not in [line.name for line in lines]
    with veilsum.simulate(frame, SCHEMA, sites=3, seed=2) as whole:  # of which none is missing
        one = whole.dataset(epsilon=0.05).table(["age", "marker", "sex"]).run(progress=False).paper()
        exact = whole.dataset(noise="none").table(["age", "marker", "sex"]).run(progress=False).paper()
    assert [line.name for line in one.lines].count("Missing") == 3
    assert "Missing" not in [line.name for line in exact.lines]


def test_no_total_stands_beside_cells_that_are_not_printed(federation: Any) -> None:
    asked = federation.dataset(noise="none").table(["age", "stage"], by="arm", smallest_cell=400).run(progress=False)
    assert not any(name.endswith(" overall") for name in asked.tables)
    table = asked.paper()
    assert not any(name.startswith("Overall") for name in table.head)
    assert any("<400" in cell for line in table.lines for cell in line.cells)


def test_the_intervals_of_all_groups_together_cover_what_there_is(frame: pd.DataFrame) -> None:
    """Under noise, which is that of all groups: 95 of 100 intervals hold the sample's count, and as many its mean."""
    with veilsum.simulate(frame, SCHEMA, sites=3, seed=2) as made:
        asked = made.dataset(epsilon=1.0).table(["age", "sex"], by=["arm", "stage"])
        own = frame.dropna(subset=["arm", "stage"])
        held, shares, widths = [], [], []
        for _ in range(60):
            result = asked.run(progress=False)
            (numbers,), levels = result.tables["table-one.numbers overall"], result.tables["table-one.sex overall"]
            for row in levels[:2]:
                count = row["count"]
                held.append(count["low"] <= (own.sex == row["sex"]).sum() <= count["high"])
            mean, error = numbers["mean"]["value"], numbers["mean"]["noise_error"]
            shares.append(abs(mean - own.age.mean()) <= 1.96 * error)
            grouped = result.tables["table-one.sex"]
            widths.append(levels[0]["count"]["noise_error"] / grouped[0]["count"]["noise_error"])
    assert np.mean(held) >= 0.87
    assert np.mean(shares) >= 0.83
    np.testing.assert_allclose(widths, math.sqrt(6.0))


@given(st.floats(0.01, 100), st.floats(1e-9, 0.01))
def test_an_epsilon_is_rounded_up_to_what_was_asked_for(epsilon: float, delta: float) -> None:
    """A study costs a little less than it may; journals print what it may, and never less than it is."""
    told = _cost(epsilon, delta)
    printed = float(told.removeprefix("ε = ").partition(",")[0])
    assert epsilon * (1 - 1e-9) <= printed <= epsilon + max(0.001, 0.1 * epsilon)
    assert _cost(5.99999, 1e-5) == "ε = 6, δ = 0.00001"


@given(st.integers(-20, 120), st.integers(0, 30), st.integers(0, 30))
@example(absent=0, of_levels=20, of_count=30)
@example(absent=0, of_levels=0, of_count=0)
def test_missing_numbers_have_a_row_unless_it_is_known_that_there_are_none(absent: int, of_levels: int, of_count: int) -> None:
    levels = [{"sex": level, "count": {"value": 200.0, "noise_error": of_levels}, "share": {"value": 0.5}} for level in "fm"]
    count, mean = {"value": 400.0 - absent, "noise_error": of_count}, {"value": 50.0, "noise_error": 0.1}
    numbers = [{"column": "age", "count": count, "mean": mean, "standard_deviation": mean}]
    (table,) = paper_tables({"one.numbers": numbers, "one.sex": levels}, None).values()
    shown = [line.cells for line in table.lines if line.name == "Missing"]
    tells = absent >= 0.5 or of_levels or of_count
    told = max(absent, 0)  # a tie rounds as the share does
    assert shown == ([(f"{told} ({100.0 * (told / 400.0):.1f})",)] if tells else [])


def cells_of(table: PaperTable) -> list[list[str]]:
    return [list(table.head), *([line.name, *line.cells] for line in table.lines)]


def word_cells(data: bytes) -> list[list[str]]:
    """What a reader of Word's format finds in a document's one table."""
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        assert packed.testzip() is None
        assert packed.namelist()[0] == "[Content_Types].xml"
        for name in packed.namelist():
            lxml.etree.fromstring(packed.read(name))
        root = lxml.etree.fromstring(packed.read("word/document.xml"))
    (table,) = root.iter(f"{W}tbl")
    return [["".join(cell.itertext()) for cell in row.iter(f"{W}tc")] for row in table.iter(f"{W}tr")]


def html_cells(text: str) -> list[list[str]]:
    (table,) = lxml.html.fragment_fromstring(text).iter("table")
    return [[cell.text_content() for cell in row.iter("td", "th")] for row in table.iter("tr")]


def untexed(text: str) -> str:
    """What a text in TeX shows, by a parser of its own; indices on the line."""
    return plainly(LatexNodes2Text(math_mode="text", strict_latex_spaces=True).latex_to_text(text).replace("ˆ", "^"))


def plainly(text: str) -> str:
    """A text without what two ways of writing it differ in: widths, indices, dashes and quotes."""
    for signs, one in (("[-‐–—−]+", "-"), ("[‘’`']", "'"), ("[“”]|''", '"'), ("ϕ", "φ"), ("ϵ", "ε"), ("∆", "Δ"), ("…", "...")):
        text = re.sub(signs, one, unicodedata.normalize("NFKC", text))
    return " ".join(text.split())


SIGNS = "±×÷·≤≥≠≈≡∞∝→←↔∂∫∈∑∏µαβγδεζηθικλμνξπρςστυφχψωΓΔΘΛΞΠΣΥΦΨΩ°−–—…†€¢‰®™¥«»‹›„‚đĐðÐþÞŋŊ⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺₀₁₂₃₄₅₆₇₈₉"
ACCENTS = set("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327\u0323\u0331\u0328")  # of LaTeX and T1
LATIN = (
    "".join(
        letter
        for letter in map(chr, [*range(0xC0, 0x180), *range(0x1E00, 0x1F00)])
        if (parts := unicodedata.normalize("NFD", letter))[0].isascii() and {*parts[1:]} <= ACCENTS
    )
    + "ßæÆœŒøØłŁı"
)
KNOWN = st.text(
    st.sampled_from(string.digits + string.ascii_letters + string.punctuation + " \t\n" + SIGNS + LATIN), max_size=20
)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(KNOWN)
@example(r"100% a_b & $5 #1 {x} ~ ^ \ <0.1 | >99.9")
@example("kg/m² ≥ 5 µmol/L x̄ ± 1, 10⁻⁹/L")
@example("Müller-Łukasz naïve Ångström İıịĵ")
@example("--- ''' ,, ?` !` ``")
def test_signs_of_tables_are_ones_that_pdflatex_knows(text: str) -> None:
    """Without a package of signs pdfLaTeX stops at each that is not ASCII, but for some of Latin letters."""
    told = escaped_tex(text)
    assert told.isascii()
    assert told.isprintable() | (not told)
    LatexWalker(told, tolerant_parsing=False).get_latex_nodes()
    assert re.search(r"(?<!\\)[&%#_]", told) is None
    assert untexed(told) == plainly(text)


def test_a_table_of_latex_says_what_it_needs() -> None:
    def head(cell: str) -> str:
        return "".join(line for line in PaperTable("T", ("", cell), ()).to_latex().splitlines(True) if line[0] == "%")

    assert head("n ≥ 5 µg, Müller") == "% Needs \\usepackage{booktabs}.\n"
    assert "[T1]{fontenc}" in head("ą")
    assert "[T1]{fontenc}" in head("„")
    assert "{textcomp}" in head("5 €")
    assert re.findall("[^\x00-\x7f]", head("й中文 é")) == ["й", "中", "文"]
    assert "XeLaTeX" in head("й")
    table = PaperTable("T", ("a", "b"), (Line("[0, 10)", ("1",)), Line("*", ("2",), 1)))
    assert "\n{[}0, 10) & 1 \\\\\n\\quad {*} & 2 \\\\\n" in table.to_latex()
    assert r"1$\frac{1}{2}$" in PaperTable("1½", ("a",), ()).to_latex()
    assert escaped_tex("a\u200b\x07b") == "ab"
    assert escaped_tex("‡£§¶©") == r"\ddag{}\pounds{}\S{}\P{}\copyright{}"


def test_what_is_rare_is_not_printed_as_none() -> None:
    def row(level: str, count: float, share: float) -> dict[str, Any]:
        return {"icd": level, "count": {"value": count}, "share": {"value": share}}

    total = 12_003.0
    counts = {"rare": 3.0, "none": 0.0, "noise": 0.3, "most": total - 3.3}
    (table,) = paper_tables({"one.icd": [row(level, count, count / total) for level, count in counts.items()]}, None).values()
    assert {line.name: line.cells[0] for line in table.lines[1:]} == {
        "rare": "3 (<0.1)", "none": "0 (0.0)", "noise": "0 (0.0)", "most": "12,000 (>99.9)",
    }  # fmt: skip
    curve = {"value": 0.99976, "low": 0.9992, "high": 1.0}
    rows = [{"figure": "survival", "time": 1.0, "unit": "y", "value": curve}]
    (survival,) = paper_tables({"curve": rows}, None).values()
    assert survival.lines[0].cells == ("99.976 (99.920 to 100.000)",)


def test_every_form_has_every_cell(described: Any) -> None:
    for table in described.papers().values():
        assert word_cells(table.to_docx()) == cells_of(table)
        assert html_cells(table.to_html()) == cells_of(table)
        assert all(cell in table.text for row in cells_of(table) for cell in row)
        plain = untexed(table.to_latex())
        assert all(plainly(cell) in plain for row in cells_of(table) for cell in row)


ODD = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=12) | st.sampled_from(
    [
        "<script>alert(1)</script>",
        "]]>&amp;",
        "\x00\x01\x0b",
        "[0, 10)",
        r"\input{x} 100% $a_b^c {~}",
        "\ufffe\uffff",
        "a\u2028b",
    ]
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.tuples(ODD, ODD, st.integers(0, 2)), min_size=1, max_size=4), ODD)
def test_hostile_names_break_no_form(rows: list[tuple[str, str, int]], title: str) -> None:
    table = PaperTable(title, ("", title), tuple(Line(name, (cell,), indent) for name, cell, indent in rows), (title,))
    assert len(word_cells(table.to_docx())) == len(rows) + 1
    tags = {element.tag for element in lxml.html.fragment_fromstring(table.to_html()).iter() if isinstance(element.tag, str)}
    assert tags <= {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
    assert table.to_latex().count(r"\\" + "\n") == len(rows) + 1
    assert table.text.startswith(title)


def test_what_noise_or_a_rule_hides_is_said(described: Any) -> None:
    def figure(value: float) -> dict[str, float]:
        return {"value": value, "noise_error": 3.0, "sampling_error": 0.0, "low": value - 6, "high": value + 6}

    lost = {"not_estimable": "noise", "advice": ""}
    rows = [
        {"sex": "f", "count": figure(-2.4), "share": figure(0.0)}, {"sex": "m", "count": {"below": 5}, "share": lost},
        {"sex": "missing", "count": figure(4.0), "share": figure(0.01)},
    ]  # fmt: skip
    means = [{"column": "age", "unit": "years", "count": figure(9.0), "mean": lost, "standard_deviation": lost}]
    (table,) = paper_tables({"one.numbers": means, "one.sex": rows}, None).values()
    found = {line.name: line.cells for line in table.lines}
    assert found["f"] == ("0 (0.0)",)
    assert found["m"] == ("<5",)
    assert found["Missing"] == ("4 (1.0)",)  # though it is within twice its noise
    assert found["age, years, mean (SD)"] == ("—†",)
    assert any("noise" in note for note in table.notes)
    assert any("Not estimable" in note for note in table.notes)


def test_a_note_says_how_much_noise_there_is(federation: Any) -> None:
    patients = federation.dataset(epsilon=2.5, delta=2e-6)
    table = patients.table(["age", "sex"]).run(progress=False).paper()
    assert table.notes[0] == (
        "Numbers have noise for the privacy of patients (differential privacy, ε = 2.5, δ = 0.000002); "
        "counts are rounded, and not below 0."
    )
    exact = federation.dataset(noise="none").table(["age"]).run(progress=False).paper()
    assert exact.notes == ()


def test_a_median_past_the_end_of_its_curve_is_not_reached(federation: Any) -> None:
    edges = {"from": 0, "to": 1, "steps": 2}
    asked = federation.dataset(noise="none").survival("time", event="died", censored="no", edges=edges)
    table = asked.run(progress=False).paper("survival")
    found = {line.name: line.cells for line in table.lines}
    assert found["Median survival, years (95% CI)"] == ("not reached",)
    assert not any("Not estimable" in note for note in table.notes)


def test_columns_of_a_word_table_are_as_wide_as_what_they_hold(described: Any) -> None:
    table = described.paper("table-one")
    with zipfile.ZipFile(io.BytesIO(table.to_docx())) as packed:
        root = lxml.etree.fromstring(packed.read("word/document.xml"))
    grid = [int(column.get(f"{W}w")) for column in root.iter(f"{W}gridCol")]
    for row in root.iter(f"{W}tr"):
        assert [int(width.get(f"{W}w")) for width in row.iter(f"{W}tcW")] == grid
    (page,) = root.iter(f"{W}pgSz")
    (margin,) = root.iter(f"{W}pgMar")
    room = int(page.get(f"{W}w")) - int(margin.get(f"{W}left")) - int(margin.get(f"{W}right"))
    assert sum(grid) <= room + len(grid)
    assert grid[-1] < min(grid[:-1])  # p-values are the shortest
    assert grid[0] > grid[-1] * 2


@pytest.mark.parametrize(("count", "noise", "cell"), [
    (2.0, 0.0, "62.50 (1.00)"), (1.0, 0.0, "62.50 (0.71)"), (154.0, 0.3, "62.50 (0.71)"), (154.0, 0.4, "62.50 (—†)"),
])  # fmt: skip
def test_a_deviation_is_the_samples_and_left_out_where_most_of_it_may_be_noise(count: float, noise: float, cell: str) -> None:
    def figure(value: float, noise: float = 0.0) -> dict[str, float]:
        return {"value": value, "noise_error": noise, "sampling_error": 0.0, "low": value, "high": value}

    row = {"column": "age", "unit": "", "count": figure(count), "mean": figure(62.5)}
    row["standard_deviation"] = figure(math.sqrt(0.5), noise)
    (table,) = paper_tables({"one.numbers": [row], "one.sex": []}, None).values()
    assert table.lines[0].cells == (cell,)


# -- pictures --------------------------------------------------------------------------------------------------------------


def texts(canvas: Any) -> list[str]:
    """What stands in a picture, in whatever lines."""
    return [" ".join(text.get_text().split()) for axes in canvas.axes for text in axes.texts]


def test_a_curve_is_a_step_with_numbers_at_risk_and_the_test(described: Any) -> None:
    canvas = described.plot("survival")
    curves, below = canvas.axes
    lines = [line for line in curves.lines if line.get_drawstyle() == "steps-post"]
    assert [line.get_label() for line in lines] == ["Hormone therapy: no", "Hormone therapy: yes"]
    for line, arm in zip(lines, ("no", "yes"), strict=True):
        rows = [row for row in described.tables["survival"] if row["arm"] == arm and row["figure"] == "survival"]
        assert line.get_xdata().tolist() == [0.0, *(row["time"] for row in rows)]
        assert line.get_ydata().tolist() == [1.0, *(row["value"]["value"] for row in rows)]
    (test,) = described.tables["survival tests"]
    p = p_text(test["p_value"])
    assert f"Log-rank P {p if p[0] in '<>' else f'= {p}'}" in texts(canvas)
    starts = [row["at_risk"] for row in described.tables["survival"] if row["arm"] == "no" and row["figure"] == "survival"]
    assert f"{round(starts[0]):,}" in [text.get_text() for text in below.texts]
    assert below.get_xlabel() == "Time, years"


def test_a_model_has_a_forest_with_references_and_a_table(federation: Any) -> None:
    fit = (
        federation.dataset(noise="none")
        .logistic("died ~ age + C(stage, Treatment('II')) * arm", per={"age": 10})
        .run(progress=False)
    )
    said, table = texts(fit.plot()), fit.paper()
    names = [line.name for line in table.lines]
    assert names == [
        "Age, per 10 years", "Stage_1 50%", "II", "I", "III", "Hormone therapy", "no", "yes",
        "Stage_1 50%: I × Hormone therapy: yes", "Stage_1 50%: III × Hormone therapy: yes",
    ]  # fmt: skip
    assert table.lines[2].cells == ("1 [reference]", "")
    assert set(names) <= set(said)
    assert said.count("Reference") == 2
    for line in table.lines:
        if "(" in line.cells[0]:
            assert line.cells[0] in said
    assert table.title == "Logistic regression of Death = yes"


def test_a_regression_says_of_how_many_records_and_events_it_is(federation: Any, frame: pd.DataFrame) -> None:
    complete = frame.dropna(subset=["age", "stage", "arm", "died"])
    numbers = f"n = {len(complete):,}; {(complete.died == 'yes').sum():,} events."
    fit = federation.dataset(noise="none").logistic("died ~ age + stage + arm").run(progress=False)
    table = fit.paper()
    assert table.notes[0] == numbers
    with zipfile.ZipFile(io.BytesIO(table.to_docx())) as packed:
        word = packed.read("word/document.xml").decode()
    assert all(numbers in form for form in (table.text, table.to_html(), table.to_latex(), word, fit.summary()))
    noised = federation.dataset(epsilon=3.0).linear("age ~ arm").run(progress=False).paper().notes[0]
    found = re.fullmatch(r"n = ([\d,]+) \(95% CI ([\d,]+) to ([\d,]+)\)\.", noised)
    assert found is not None
    value, low, high = (int(end.replace(",", "")) for end in found.groups())
    assert low < value < high
    assert abs(value - len(frame.dropna(subset=["age", "arm"]))) < 2 * (high - low)


def test_subgroups_are_logistic_regressions_with_an_interaction(federation: Any, frame: pd.DataFrame) -> None:
    result = federation.dataset(noise="none").subgroups("arm", "died", ["sex", "stage"]).run(progress=False)
    table = result.paper()
    cells = {(line.name, line.indent): line.cells for line in table.lines}
    frame = frame.assign(event=(frame.died == "yes") * 1.0)
    for column, label, levels in (("sex", "Sex", ["f", "m"]), ("stage", "Stage_1 50%", ["I", "II", "III"])):
        fit = smf.logit(f"event ~ arm * {column}", frame).fit(disp=0)
        slopes = [name for name in fit.params.index if ":" in name]
        wald = fit.params[slopes] @ np.linalg.solve(fit.cov_params().loc[slopes, slopes], fit.params[slopes])
        assert cells[label, 0][1] == p_text(float(chi2.sf(wald, len(slopes))))
        for level in levels:
            alone = smf.logit("event ~ arm", frame[frame[column] == level]).fit(disp=0)
            low, high = np.exp(alone.conf_int().loc["arm[T.yes]"])
            figure = {"value": float(np.exp(alone.params["arm[T.yes]"])), "low": float(low), "high": float(high)}
            assert cells[level, 1][0] == ratio_text(figure)
    assert "P, interaction" in texts(result.plot())
    with pytest.raises(Misuse, match="no table"):
        result.paper("nothing")


def test_subgroups_of_several_treatments_have_an_interaction_for_each(federation: Any, frame: pd.DataFrame) -> None:
    result = federation.dataset(noise="none").subgroups("stage", "died", "sex").run(progress=False)
    lines = result.paper().lines
    fit = smf.logit("event ~ stage * sex", frame.assign(event=(frame.died == "yes") * 1.0)).fit(disp=0)
    pairs = {level: f"Stage_1 50%: {level} against I" for level in ("II", "III")}
    headings = [(line.name, line.cells[1]) for line in lines if line.name.startswith("Sex")]
    assert headings == [
        (f"Sex, {pair}", p_text(float(fit.pvalues[f"stage[T.{level}]:sex[T.m]"]))) for level, pair in pairs.items()
    ]
    assert [line.name for line in lines if line.name.startswith("All")] == [f"All, {pair}" for pair in pairs.values()]
    assert all(pair in result.paper().title for pair in pairs.values())


def test_a_figure_without_an_end_or_beyond_all_is_drawn() -> None:
    rows = [
        {"term": "age", "odds_ratio": {"value": 1e9, "low": 1e8, "high": 1e10}, "p_value": 0.0},
        {"term": "sex", "odds_ratio": {"value": 0.9, "low": None, "high": None}, "p_value": 0.9},
        {"term": "stage", "odds_ratio": {"not_estimable": "none", "advice": ""}, "p_value": None},
    ]  # fmt: skip
    canvas = draw("coefficients", Drawn(rows, (), (), Names(None)))
    canvas.savefig(io.BytesIO(), format="png")
    assert "—" in texts(canvas)
    assert draw("x", Drawn([{"a": 1}])) is None


def figure_of(value: float, low: float | None, high: float | None, noise: float = 0.0) -> dict[str, Any]:
    return {"value": value, "noise_error": noise, "sampling_error": 0.0, "low": low, "high": high}


def numbers_of(cell: str) -> list[float]:
    """The numbers of a cell, as they are printed."""
    return [float(text.replace("−", "-")) for text in re.findall(r"[−]?[0-9.]+", cell.replace(",", ""))]


@pytest.mark.parametrize("scale", [1e-9, 3e-5, 1.0, 4e7])
def test_no_table_prints_a_small_number_as_nothing(scale: float) -> None:
    """Concentrations in mol/L, times in years, coefficients per unit of platelets: what is printed tells them apart."""
    wanted = [0.8 * scale, 0.7 * scale, 0.9 * scale]
    linear = paper_tables({"coefficients": [{"term": "x", "coefficient": figure_of(*wanted), "p_value": 0.01}]}, None)
    assert numbers_of(linear["coefficients"].lines[0].cells[0]) == pytest.approx(wanted, rel=0.05)
    row = {"column": "x", "unit": "", "count": figure_of(1e6, None, None)}
    row |= {"mean": figure_of(*wanted), "standard_deviation": figure_of(0.2 * scale, 0.1 * scale, 0.3 * scale)}
    quartiles = [
        {"column": "x", "unit": "", "quantile": q, "value": figure_of(q * scale, None, None)} for q in (0.25, 0.5, 0.75)
    ]
    (mean, median) = paper_tables({"one.numbers": [row], "one.x": quartiles}, None)["one"].lines
    assert numbers_of(mean.cells[0]) == pytest.approx([wanted[0], 0.2 * scale], rel=0.05)
    assert numbers_of(median.cells[0]) == pytest.approx([0.5 * scale, 0.25 * scale, 0.75 * scale], abs=0.02 * scale)
    time = {"figure": "restricted mean", "time": None, "unit": "years", "value": figure_of(*wanted), "at_risk": None}
    curve = [{**time, "figure": "survival", "time": 1.0}, time]
    *_, told = paper_tables({"curve": curve}, None)["curve"].lines
    assert numbers_of(told.cells[0]) == pytest.approx(wanted, rel=0.05)


def test_a_unit_with_a_per_of_its_own_is_no_step_of_a_term() -> None:
    frame = patients(300).rename(columns={"age": "pulse", "marker": "cells"})
    columns = [
        number("pulse", "Pulse", 20, 90, "beats per minute"), number("cells", "Cells", 0, 60, "10^9 per litre"),
        number("time", "Follow-up", 0, 10, "years"), category("arm", "Hormone therapy", "no", "yes"),
    ]  # fmt: skip
    derive = {"late": {"of": "time", "edges": [5.0]}}
    with veilsum.simulate(frame, {"max_records": 1000, "columns": columns}, sites=2, seed=2) as made:
        fit = made.dataset(noise="none").linear("pulse", ["cells", "time", "late", "arm"], derive=derive).run(progress=False)
    names = [line.name for line in fit.paper().lines]
    assert names == [
        "Constant",
        "Cells, per 10^9 per litre",
        "Follow-up, per year",
        "late 5 to 10",
        "Hormone therapy",
        "no",
        "yes",
    ]


def test_the_cells_of_a_row_have_as_many_decimals() -> None:
    """Of two groups one whose deviation is 140 and one whose is 90, or whose deviation nobody can tell."""
    numbers = [
        {"column": "x", "unit": "", "arm": arm, "count": figure_of(9e6, None, None), "mean": figure_of(*[mean] * 3)}
        | {"standard_deviation": {"not_estimable": "noise"} if spread is None else figure_of(*[spread] * 3)}
        for arm, mean, spread in (("a", 84.21, 138.7), ("b", 71.52, 92.1), ("c", 0.412, None))
    ]
    small = [{**row, "column": "y", "mean": figure_of(0.0181, 0.0, 0.0), "arm": row["arm"]} for row in numbers]
    small = [{**row, "standard_deviation": {"not_estimable": "noise"}} for row in small]
    quartiles = [
        {"column": "x", "unit": "", "arm": arm, "quantile": q, "value": figure_of(q * spread, None, None)}
        for arm, spread in (("a", 200.0), ("b", 90.0), ("c", 3.0)) for q in (0.25, 0.5, 0.75)
    ]  # fmt: skip
    told = paper_tables({"one.numbers": numbers + small, "one.quantiles": quartiles}, None)["one"]
    found = {line.name: line.cells for line in told.lines}
    assert found["x, mean (SD)"][:3] == ("84 (139)", "72 (92)", "0 (—†)")
    assert found["x, median [IQR]"][:3] == ("100.0 [50.0 to 150.0]", "45.0 [22.5 to 67.5]", "1.5 [0.8 to 2.2]")
    assert found["y, mean (SD)"][:3] == ("0.018 (—†)",) * 3


@pytest.mark.parametrize(
    ("low", "value", "high", "text"),
    [
        (0.0, 0.5, 1.2, "0.50 (0 to 1.20)"), (None, 2.0, None, "2.00 (0 to ∞)"),
        (1e-9, 0.0004, 0.0031, "<0.001 (<0.001 to 0.0031)"),
        (9.994, 9.996, 10.04, "10.0 (9.99 to 10.0)"), (99.94, 99.96, 123.4, "100 (99.9 to 123)"),
        (40.0, 9999.4, 1e4, "9999 (40.0 to >9999)"), (1e8, 1e9, 1e10, ">9999 (>9999 to >9999)"),
    ],
)  # fmt: skip
def test_a_ratio_has_three_digits_and_ends_of_its_scale(
    low: float | None, value: float, high: float | None, text: str
) -> None:
    assert ratio_text(figure_of(value, low, high)) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("I((bmi - 25) / 5)", "(BMI − 25) / 5"), ("I(age ** 2)", "Age²"), ("I(age ** 2):sex[T.m]", "Age² × Sex: m"),
        ("bs(bmi, knots=[25, 30], degree=2)[3]", "BMI, B-spline 3"), ("cr(age, knots=[50])[2]", "Age, natural spline 2"),
        ("missing(bmi)", "BMI missing"), ("filled(bmi, 25)", "BMI"), ("above(age, 50)", "Age above 50"),
        ("np.log(bmi)", "log(BMI)"), ("Q('a name')", "a name"), ("C(sex, Treatment('m'))[T.f]:age", "Sex: f × Age"),
        ("I(age * -2)", "Age × −2"), ("sex[T.f]:ratio", "Sex: f × LDL:HDL ratio"), ("I(age > 65)", "Age > 65"),
    ],
)  # fmt: skip
def test_a_column_of_a_design_is_read_as_people_write_it(name: str, text: str) -> None:
    names = Names(None)
    names._labels = {"age": "Age", "bmi": "BMI", "sex": "Sex", "ratio": "LDL:HDL ratio"}
    (term,) = terms_of([{"term": name}], names)
    assert term.shown == text


def test_what_has_no_form_of_its_own_is_printed_by_labels_too(federation: Any) -> None:
    data = federation.dataset(noise="none")
    odds = data.independence("stage", "arm").run(progress=False)
    table = printed_tables(odds.content, odds.study, (), odds.about)["independence ratios"]
    assert table.lines[0].name == "Hormone therapy: yes"
    assert table.lines[0].cells[0] == "Stage_1 50%: II against I"
    assert all("-" not in cell for line in table.lines for cell in line.cells)
    assert any("−0." in cell for line in table.lines for cell in line.cells)
    assert table.head[-1] == "P value"
    assert {"Hormone therapy: yes", "Stage_1 50%: III against I", "Odds ratio (95% CI)"} <= set(
        texts(odds.plot("independence ratios"))
    )
    means = data.mean("age", by="arm").run(progress=False)
    (printed,) = (each for name, each in printed_tables(means.content, means.study).items() if name == "mean")
    assert printed.head[0] == "Hormone therapy"
    assert {cell for line in printed.lines for cell in line.cells} >= {"Age", "years"}
    assert {axes.get_xlabel() for axes in means.plot().axes} == {"Age, years, mean (95% CI)"}


def test_counts_and_shares_of_plain_tables_are_those_of_people(federation: Any, frame: pd.DataFrame) -> None:
    """Whole numbers, not below 0, and percent, each with its interval where it has one; heads say what stands in brackets."""
    for options in ({"noise": "none"}, {"epsilon": 1.0}, {"epsilon": 0.02}):
        result = federation.dataset(**options).count("stage", by="arm").run(progress=False)
        table = printed_tables(result.content, result.study, (), result.about)["count"]
        interval = "noise" not in options
        assert table.head[:2] == ("Hormone therapy", "Stage_1 50%")
        told = any("value" in row["share"] for row in result.tables["count"])  # of noise alone there is none
        assert table.head[2:] == ("Count (95% CI)" if interval else "Count", "Share (95% CI)" if told else "Share")
        for row, line in zip(result.tables["count"], table.lines, strict=True):
            counts = [int(text.replace(",", "")) for text in re.findall(r"[\d,]+", line.cells[1])]
            ends = ("value", "low", "high") if interval else ("value",)
            assert counts == [max(round(row["count"][end]), 0) for end in ends]
            if not interval:
                assert counts == [((frame.arm == row["arm"]) & (frame.stage == row["stage"])).sum()]
            if "value" in row["share"] and row["share"]["value"] > 0.001:
                shares = [float(text) for text in re.findall(r"[\d.]+(?=%)", line.cells[2])]
                np.testing.assert_allclose(shares, [100 * row["share"][end] for end in ("value", "low", "high")], atol=0.0501)
        assert r"95\% CI" in result.to_latex("count")


def test_a_cox_regression_says_of_what_event_it_is(federation: Any) -> None:
    ratios = federation.dataset(noise="none").cox("time ~ age", event="died", censored="no").run(progress=False)
    assert ratios.paper().title == "Cox regression of Follow-up to Death"


@pytest.mark.parametrize("scale", [1e-6, 0.001, 1.0, 1e6])
def test_numbers_below_a_picture_do_not_overlap(scale: float) -> None:
    rows = [{"column": "x", "arm": arm, "mean": figure_of(v * scale, (v - 0.04) * scale, (v + 0.04) * scale)}
            for arm, v in (("no", 1.83), ("yes", 1.78))]  # fmt: skip
    canvas = draw("mean", Drawn(rows))
    canvas.savefig(io.BytesIO(), format="png")
    (axes,) = canvas.axes
    boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
    inside = [box for box in boxes if axes.bbox.x0 - 1 <= (box.x0 + box.x1) / 2 <= axes.bbox.x1 + 1]
    assert len(inside) >= 2
    assert all(one.x1 < other.x0 for one, other in pairwise(inside))


def test_a_forest_of_differences_has_the_tables_words() -> None:
    rows = [{"term": "x", "coefficient": figure_of(-0.0213, -0.0431, -0.0001), "p_value": 0.046}]
    table = paper_tables({"coefficients": rows}, None)["coefficients"]
    assert table.lines[0].cells == ("−0.021 (−0.043 to 0.000)", ".046")
    assert table.lines[0].cells[0] in texts(draw("coefficients", Drawn(rows)))


def test_the_p_of_all_is_not_one_of_an_interaction(federation: Any) -> None:
    result = federation.dataset(noise="none").subgroups("arm", "died", "sex").run(progress=False)
    whole, heading, *_ = result.paper().lines
    said = texts(result.plot())
    assert whole.name == "All"
    assert (whole.cells[1] in said, heading.cells[1] in said) == (whole.cells[1] == heading.cells[1], True)


def test_a_lower_end_that_is_open_is_minus_infinity() -> None:
    rows = [{"term": "x", "coefficient": figure_of(-3.0, None, -1.0), "p_value": 0.01}]
    assert paper_tables({"coefficients": rows}, None)["coefficients"].lines[0].cells[0] == "−3.00 (−∞ to −1.00)"


def test_an_open_end_is_drawn_to_the_edge() -> None:
    """As a line that ends at the value it would say that the value is known."""
    rows = [
        {"column": "x", "quantile": 0.5, "value": figure_of(5.0, 4.0, None)},
        {"column": "x", "quantile": 0.9, "value": figure_of(8.0, None, 9.0)},
    ]
    (axes,) = draw("quantiles", Drawn(rows)).axes
    low, high = axes.get_xlim()
    drawn = [(float(y[0]), min(x), max(x)) for x, y in (line.get_data() for line in axes.lines) if len(x) == 2]
    assert {(0.0, 5.0, high), (1.0, low, 8.0)} <= {*drawn}
    assert low < 4.0 < 9.0 < high
    assert [line.get_marker() for line in axes.lines if line.get_marker() in "<>"] == [">", "<"]


LONG = "Systemic lupus erythematosus with organ or system involvement, not elsewhere classified, " * 2
TOLD = {"value": 0.9, "low": 0.8, "high": 0.95}


@pytest.mark.filterwarnings("error:constrained_layout")
@pytest.mark.parametrize(
    "row",
    [
        {"column": "age", "diagnosis": LONG, "mean": TOLD},
        {"column": LONG, "mean": TOLD},
        {"term": LONG, "odds_ratio": TOLD, "p_value": 0.1},
        {"figure": "survival", "time": 10.0, "diagnosis": LONG, "value": TOLD, "at_risk": 10.0, "unit": "days"},
    ],
    ids=["figure", "column", "term", "curve"],
)
def test_a_long_name_is_broken_into_lines_and_leaves_the_figure_its_room(row: dict[str, Any]) -> None:
    """In one line it took the whole width, and matplotlib drew over it."""
    canvas = draw("x", Drawn([row]))
    canvas.savefig(io.BytesIO(), format="png")
    assert max(axes.get_position().width for axes in canvas.axes if axes.lines) > 0.25
    assert any(LONG[:90].replace(" ", "") in "".join(text.get_text().split()) for text in canvas.findobj(Text))


def test_files_for_papers_are_few_and_named_for_their_tables(described: Any, tmp_path: Path) -> None:
    files = described.export(tmp_path, ["latex", "word", "text", "html"], nonnormal=["age", "marker"])
    assert {file.name for file in files} == {
        "table-one.tex", "table-one.txt", "survival.tex", "survival.txt", "result.docx", "result.html",
    }  # fmt: skip
    assert "mean (SD)" not in (tmp_path / "table-one.txt").read_text()
    page = lxml.html.document_fromstring((tmp_path / "result.html").read_text())
    assert [heading.text_content() for heading in page.iter("h2")] == ["table-one", "survival", "summary"]
    assert documents_of(list(described.papers().values())) == documents_of(list(described.papers().values()))
    assert described.to_docx(tmp_path / "one.docx", "table-one").read_bytes()[:2] == b"PK"
    assert SUBGROUPS not in described.papers()
