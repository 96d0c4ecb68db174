"""The dossier: its figures against other accountants, its twin against the page, and the page as a browser reads it."""

from __future__ import annotations

import hashlib
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from support.fresh import LEDGER, fresh_database
from support.ledgers import GRID, Trial, open_ledger
from veilsum_node.database import Database
from veilsum_node.errors import Refusal, RefusalCode
from veilsum_node.phrases import counted
from veilsum_privacy.dossier import Proof, StudyLabel, charts, describe, figures, render
from veilsum_privacy.dossier.charts import MOST_BARS, ticks
from veilsum_privacy.dossier.ledgers import check
from veilsum_privacy.dossier.page import CODES, MOST_ROWS, refusal_rows, release_rows
from veilsum_privacy.dossier.protection import ANNEXES, impact_assessment
from veilsum_privacy.ledger import Entry, Kind, Ledger, LedgerReader, Mechanism, Reservation
from veilsum_privacy.ledger.statements import RequestedStudy
from veilsum_privacy.mechanism.noise_plan import plan_noise

DELTA = 1e-5
DAY = 86_400
ORDERS = [1 + step / 10 for step in range(1, 1000)] + list(range(101, 1025))
VOID = {"meta", "link", "br", "img", "input", "hr", "line", "rect", "path"}


class Clock:
    """Goes on by a second whenever it is read, and by as much as a test wants."""

    def __init__(self) -> None:
        self.time = 1_741_000_000

    def __call__(self) -> int:
        self.time += 1
        return self.time


class Site:
    """A real ledger in memory, written by the calls that a participant makes."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.database: Database = fresh_database(":memory:", LEDGER)
        self.ledger: Ledger = open_ledger(self.database, "north", clock=self.clock)
        self._count = 0

    def budget(self, population: str, epsilon: float | None, delta: float = DELTA, **about: Any) -> None:
        words = {"reason": "vote", "operator": "eve"} | about
        with self.database.transaction() as connection:
            self.ledger.set_budget(connection, population, epsilon, delta, **words)

    def reservation(
        self, population: str, study: str, multiplier: float, *, kind: str = "distributed", cohort: int = 4,
        colluders: int = 1, rate: float = 1.0, steps: int = 1, unit: str = "record", dataset: str = "",
    ) -> Reservation:  # fmt: skip
        self._count += 1
        variance = 0 if kind in ("none", "kept") else round((multiplier * GRID) ** 2)
        noise = plan_noise(kind, variance, cohort, colluders)  # type: ignore[arg-type]
        context = hashlib.sha256(b"%d" % self._count).digest()
        return Reservation(
            digest(study), self._count, 1, context, population, dataset or f"{population}-2025",
            Mechanism(GRID, noise, rate, steps), unit, cohort,
        )  # fmt: skip

    def release(self, *arguments: Any, end: str = "seen", **options: Any) -> Reservation:
        """Reserve, and then: ``open``, ``free``, ``charge`` only, or ``seen``."""
        reservation = self.reservation(*arguments, **options)
        with self.database.transaction() as connection:
            self.ledger.reserve(connection, reservation)
            if end == "free":
                self.ledger.free(connection, reservation.context)
            elif end != "open":
                self.ledger.charge(connection, reservation.context)
            if end == "seen":
                self.ledger.release_seen(connection, reservation.context)
        return reservation

    def refuse(self, code: RefusalCode, *codes: RefusalCode, **about: Any) -> None:
        parts = [Refusal(item, f"Said {item}.", "Ask.") for item in (code, *codes)]
        refusal = Refusal.of(parts)
        assert refusal is not None
        with self.database.transaction() as connection:
            self.ledger.refuse(connection, refusal, **about)

    def describe(self, **options: Any) -> dict[str, Any]:
        reader = LedgerReader(self.database)
        proof = check(reader).proof(reader, self.clock.time)
        return describe(reader.entries(), proof, site="north", made=self.clock.time, **options)


def digest(study: str) -> bytes:
    return hashlib.sha256(study.encode()).digest()


def lively() -> Site:
    """Two populations, budgets that change, several studies, open, freed, local and refused releases."""
    site = Site()
    site.budget("cardiology", 3.0, reason="Board, 12 March", operator="A. Lindqvist")
    site.budget("oncology", 1.5, 1e-6)
    for _ in range(3):
        site.release("cardiology", "ages", 9.0)
    site.clock.time += 40 * DAY
    site.release("cardiology", "classifier", 4.0, cohort=6, colluders=2)
    site.release("oncology", "shares", 6.0, cohort=3)
    site.refuse(RefusalCode.BUDGET, reservation=site.reservation("cardiology", "greedy", 1.0))
    site.refuse(RefusalCode.BUDGET, reservation=site.reservation("cardiology", "greedy", 0.9))
    site.refuse(RefusalCode.ANALYST, RefusalCode.METHOD, study=digest("foreign"), dataset="unknown")
    site.clock.time += 90 * DAY
    site.budget("cardiology", 5.0, reason="Second year", operator="A. Lindqvist")
    site.release("cardiology", "local", 7.0, kind="local")
    site.release("cardiology", "local", 8.0, end="free")
    site.release("cardiology", "running", 8.0, end="open")
    site.release("cardiology", "classifier", 4.0, cohort=6, colluders=2, end="charge")
    return site


@pytest.fixture(scope="module")
def dossier() -> dict[str, Any]:
    labels = {digest("ages"): StudyLabel("age-and-pressure", "statistics", "alice")}
    return lively().describe(studies=labels, contact="dpo@north.example")


def population(dossier: dict[str, Any], name: str) -> dict[str, Any]:
    return next(dict(item) for item in dossier["populations"] if item["name"] == name)


def oracle(multipliers: Sequence[float], delta: float = DELTA) -> float:
    """RDP of Gaussian releases by dp-accounting, at orders as fine as ours."""
    accountant = RdpAccountant(ORDERS)
    for multiplier in multipliers:
        accountant.compose(dp_accounting.GaussianDpEvent(multiplier))
    return float(accountant.get_epsilon(delta))


CHARGED = [9.0, 9.0, 9.0, 4.0, 7.0, 4.0]
"""Multipliers of the lively site's releases of cardiology, in order."""
SHARES = [9.0 / 3**0.5] * 3 + [4.0 / 2.0, 7.0, 4.0 / 2.0]
"""The same of the site's own noise alone: a third of the variance with 4 sites, a quarter with 6 and 2 colluders."""


def test_post_processing_and_what_is_shown_by_site_are_called_so() -> None:
    site = Site()
    site.budget("cardiology", 3.0)
    for kind in ("local", "kept", "kept"):
        site.release("cardiology", "aligned", 9.0, kind=kind)
    site.release("cardiology", "by-site", 9.0)
    labels = {
        digest("aligned"): StudyLabel("aligned", "fedcgs", "alice"),
        digest("by-site"): StudyLabel("by-site", "fedpft", "alice", ("mixtures",)),
    }
    described = site.describe(studies=labels)
    page = render(described)
    assert "4 releases in 2 studies, 2 of them post-processing at no cost, used" in page
    assert "multiplier 0" not in page
    assert page.count("shown of this site by itself: mixtures") == 1
    assert "figures of this site alone" in page
    alone = render(
        site.describe(studies={key: StudyLabel(label.name, label.method, "alice") for key, label in labels.items()})
    )
    assert "by itself: " not in alone
    assert "figures of this site alone" not in alone
    account = population(described, "cardiology")
    assert account["spent"] == pytest.approx(oracle([9.0, 9.0]), rel=2e-3)


def test_epsilons_are_those_of_another_accountant(dossier: dict[str, Any]) -> None:
    heart = population(dossier, "cardiology")
    assert heart["spent"] == pytest.approx(oracle(CHARGED), rel=2e-3)
    assert heart["reserved"] == pytest.approx(oracle([*CHARGED, 8.0]), rel=2e-3)  # one is open, one was freed
    assert heart["left"] == pytest.approx(5.0 - heart["reserved"])
    assert heart["alone"] == pytest.approx(oracle(SHARES), rel=2e-3)
    effective = sum(multiplier**-2 for multiplier in CHARGED) ** -0.5
    assert heart["estimate"] == pytest.approx(dp_accounting.get_epsilon_gaussian(effective, DELTA), abs=0.011)
    assert heart["estimate"] < heart["spent"] < heart["alone"]
    assert population(dossier, "oncology")["spent"] == pytest.approx(oracle([6.0], 1e-6), rel=2e-3)


def test_epsilons_are_those_of_the_ledger(dossier: dict[str, Any]) -> None:
    reader = LedgerReader(lively().database)
    for item in dossier["populations"]:
        spending = reader.spending(item["name"])
        for name in ("spent", "estimate", "reserved", "left", "alone"):
            assert item[name] == getattr(spending, name)
        assert len(item["releases"]) == spending.releases


def test_each_release_has_its_own_cost_and_the_total_after_it(dossier: dict[str, Any]) -> None:
    releases = population(dossier, "cardiology")["releases"]
    assert [release["multiplier"] for release in releases] == pytest.approx(CHARGED, rel=1e-6)
    for index, (release, share) in enumerate(zip(releases, SHARES, strict=True)):
        assert release["epsilon"] == pytest.approx(oracle([CHARGED[index]]), rel=2e-3)
        assert release["alone"] == pytest.approx(oracle([share]), rel=2e-3)
        assert release["total"] == pytest.approx(oracle(CHARGED[: index + 1]), rel=2e-3)
        assert release["share_std"] == pytest.approx(share * GRID, rel=1e-3)
        assert (release["unit"], release["delta"], release["sensitivity"]) == ("record", DELTA, GRID)
    assert [release["seen"] for release in releases] == [True] * 5 + [False]
    assert [release["budget"] for release in releases] == [3.0] * 4 + [5.0] * 2
    assert [(release["honest"], release["colluders"]) for release in releases][3:5] == [(4, 2), (1, 1)]


def test_studies_cost_alone_more_than_together(dossier: dict[str, Any]) -> None:
    heart = population(dossier, "cardiology")
    costs = {item["study"]: item for item in heart["studies"]}
    assert set(costs) == {digest(name).hex() for name in ("ages", "classifier", "local")}
    assert costs[digest("classifier").hex()]["epsilon"] == pytest.approx(oracle([4.0, 4.0]), rel=2e-3)
    assert heart["sum_of_studies"] == pytest.approx(sum(item["epsilon"] for item in heart["studies"]))
    assert heart["sum_of_studies"] > heart["spent"]


def test_a_guarantee_holds_against_no_more_colluders_than_its_weakest_release(dossier: dict[str, Any]) -> None:
    heart = population(dossier, "cardiology")
    assert heart["colluders"] == 1
    by_study = {item["study"]: item["colluders"] for item in heart["studies"]}
    assert by_study[digest("classifier").hex()] == 2
    assert by_study[digest("local").hex()] is None  # each site adds all noise: any number of them


def test_a_person_at_several_sites_is_covered_at_the_square(dossier: dict[str, Any]) -> None:
    heart = population(dossier, "cardiology")
    assert [item["sites"] for item in heart["sites"]] == [2, 3, 6]
    for item in heart["sites"]:
        assert item["epsilon"] == pytest.approx(oracle([multiplier / item["sites"] for multiplier in CHARGED]), rel=2e-3)


@pytest.mark.system
def test_sampled_releases_get_no_figure_for_several_sites() -> None:
    site = Site()
    site.budget("heart", 10.0)
    site.release("heart", "trained", 1.1, rate=0.01, steps=100)
    heart = population(site.describe(), "heart")
    assert heart["sites"] == []
    accountant = RdpAccountant(ORDERS)
    accountant.compose(dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.1)), 100))  # fmt: skip
    assert heart["spent"] == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-2)
    page = render(site.describe())
    assert "sampled at 0.01" in page
    assert "100 steps" in page
    assert "it cannot be told: heart" in page
    assert "it cannot be told" not in render(lively().describe())


def test_refusals_keep_their_figures(dossier: dict[str, Any]) -> None:
    first, second = population(dossier, "cardiology")["refusals"]
    assert (first["code"], first["budget"]) == ("budget-exceeded", 3.0)
    assert first["reserved"] == pytest.approx(oracle(CHARGED[:4]), rel=2e-3)
    assert first["after"] == pytest.approx(oracle([*CHARGED[:4], 1.0]), rel=2e-3)
    (row,) = refusal_rows([first, second])
    assert (row["count"], row["after"]) == (2, second["after"])
    (foreign,) = dossier["refusals"]
    assert [reason["code"] for reason in foreign["reasons"]] == ["analyst-not-allowed", "method-not-allowed"]


def test_every_code_has_words() -> None:
    assert set(CODES) == {code.value for code in RefusalCode}


def test_what_an_epsilon_means() -> None:
    one = figures.meaning(1.0, 0.0)
    assert one.factor == pytest.approx(math.e)
    assert one.advantage == pytest.approx((math.e - 1) / (math.e + 1))  # of randomised response, which attains it
    assert figures.meaning(0.0, DELTA) == figures.Meaning(1.0, DELTA, (1 + DELTA) / 2)
    assert figures.meaning(math.inf, DELTA).guess == figures.meaning(2000.0, DELTA).guess == 1.0


@given(st.floats(0.05, 6.0), st.sampled_from([1e-3, 1e-5, 1e-9]))
def test_no_test_for_a_record_in_gaussian_noise_beats_the_stated_advantage(mu: float, delta: float) -> None:
    """The best test of N(0, 1) against N(mu, 1) gains 2 Phi(mu / 2) - 1."""
    epsilon = dp_accounting.get_epsilon_gaussian(1 / mu, delta)
    assert figures.meaning(epsilon, delta).advantage >= 2 * norm.cdf(mu / 2) - 1 - 1e-9


@given(st.floats(1e-9, 1e6))
def test_costs_are_rounded_up_and_what_protects_is_rounded_down(value: float) -> None:
    exact = Decimal(repr(value))
    for shown, low, high in (
        (figures.cost(value), exact, exact * Decimal("1.1") + Decimal("0.001")),
        (figures.remaining(value), exact * Decimal("0.9") - Decimal("0.001"), exact),
        (figures.ratio(value), exact * Decimal("0.999"), exact),
    ):
        assert low <= Decimal(shown) <= high
    assert Decimal(figures.exact(value)) == exact
    assert figures.grouped(value).replace(",", "") == str(math.floor(value))


@given(st.floats(0.0, 1.0), st.floats(1.0, 9e5))
def test_chances_and_factors_are_rounded_up(share: float, factor: float) -> None:
    assert Decimal(repr(share)) * 100 <= Decimal(figures.of_hundred(share)) <= Decimal(repr(share)) * 100 + Decimal("0.1")
    assert Decimal(repr(factor)) <= Decimal(figures.times(factor).replace(",", ""))


def test_words_for_figures() -> None:
    assert [figures.cost(value) for value in (0.0, 0.1, 1.0, 1.0001, 0.00042, math.inf, None, "infinite")] == [
        "0", "0.1", "1", "1.001", "0.00042", "infinite", "unlimited", "infinite",
    ]  # fmt: skip
    assert [figures.remaining(value) for value in (2.9999, None)] == ["2.999", "unlimited"]
    assert [figures.small(value) for value in (1e-5, 1e-6, 1e-9)] == ["0.00001", "0.000001", "1e-9"]
    assert [figures.one_in(value) for value in (1e-5, 1e-6, 0.3)] == ["1 in 100,000", "1 in 1,000,000", "1 in 3"]
    assert [counted(number, "study", "studies") for number in (1, 1200)] == ["1 study", "1,200 studies"]
    assert figures.times(1e7) == "more than a million"


class Page(HTMLParser):
    """What a browser would make of a page; fails on a tag that is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.rows: list[list[str]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            return
        self.words.append(data)
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] += f" {data.strip()}" if data.strip() else ""

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def row(self, heading: str) -> list[str]:
        """The first row whose first cell begins so."""
        return next(row for row in ([cell.strip() for cell in row] for row in self.rows) if row and row[0].startswith(heading))

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page(dossier: dict[str, Any]) -> Page:
    return Page(render(dossier))


def check_self_contained(text: str) -> None:
    parsed = Page(text)
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", text)
    assert not {"script", "link", "iframe", "img", "object", "embed", "form", "base"} & {tag for tag, _ in parsed.tags}
    for _, attributes in parsed.tags:
        assert not {"src", "srcset", "action", "style"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert "nan" not in re.findall(r"[a-z]+", " ".join(re.findall(r'(?:d|x|y|x1|y1|width|height)="([^"]*)"', text)))


def test_the_page_needs_nothing_from_elsewhere(dossier: dict[str, Any]) -> None:
    check_self_contained(render(dossier))


def test_the_page_is_accessible(page: Page) -> None:
    assert page.named("html")[0]["lang"] == "en"
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all("scope" in attributes for attributes in page.named("th"))
    assert len(page.named("caption")) == len(page.named("table"))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for attributes in page.named("svg"):
        assert attributes["role"] == "img"
        assert set(str(attributes["aria-labelledby"]).split()) <= set(ids)
    svgs = len(page.named("svg"))
    assert svgs == len(page.named("desc")) == 2 * 3 * 2  # plots of two populations at two widths
    for _, attributes in page.tags:
        assert str(attributes.get("href", "#summary"))[1:] in ids
        assert attributes.get("aria-labelledby") is None or set(str(attributes["aria-labelledby"]).split()) <= set(ids)


def test_the_page_shows_what_the_twin_says(dossier: dict[str, Any], page: Page) -> None:
    heart = population(dossier, "cardiology")
    assert page.row("Budget")[1] == "5"
    assert page.row("Spent: the guarantee")[1] == figures.cost(heart["spent"])
    assert page.row("Spent: the estimate")[1] == figures.cost(heart["estimate"])
    assert page.row("Spent, if all others")[1] == figures.cost(heart["alone"])
    assert page.row("Spent and set aside")[1] == figures.cost(heart["reserved"])
    assert page.row("Left")[1] == figures.remaining(heart["left"])
    assert page.row("Head")[1] == dossier["proof"]["head"]
    assert page.row("Entries")[1] == str(dossier["entries"])
    for change in heart["budgets"]:
        shown = [figures.moment(change["time"]), figures.exact(change["epsilon"]), "0.00001", change["reason"]]
        assert [*shown, change["operator"], str(change["entry"])] in [[cell.strip() for cell in row] for row in page.rows]
    for row in release_rows(heart["releases"]):
        (cells,) = [item for item in page.rows if len(item) == 6 and item[5].strip() == figures.cost(row["total"])]
        assert figures.moment(row["from"]) in cells[0]
        assert f"multiplier {figures.ratio(row['multiplier'])}" in cells[2]
        assert f"{row['cohort']} sites" in cells[3]
        assert cells[4].strip().startswith(f"{figures.cost(row['epsilon'])} {figures.cost(row['alone'])} against all others")
    for refusal in refusal_rows(heart["refusals"]):
        found = [[cell.strip() for cell in cells[-3:]] for cells in page.rows]
        assert ["3", figures.cost(refusal["reserved"]), figures.cost(refusal["after"])] in found
    for item in heart["sites"]:
        square = str(item["sites"] ** 2)
        assert [str(item["sites"]), square, figures.cost(item["epsilon"])] in [
            [c.strip() for c in row[:3]] for row in page.rows
        ]
    assert f"at most {figures.of_hundred(heart['meaning']['guess'])} times in 100" in page.text
    for words in ("age-and-pressure", "dpo@north.example", "A. Lindqvist", "one record"):
        assert words in page.text
    for line in (*dossier["proof"]["proves"], *dossier["proof"]["leaves_open"], *dossier["proof"]["repeat"]):
        assert " ".join(line.split()) in page.text


def test_the_page_is_made_from_the_twin_alone(dossier: dict[str, Any]) -> None:
    twin = json.loads(json.dumps(dossier, allow_nan=False))
    assert twin == dossier
    assert render(twin) == render(dossier)


def test_equal_releases_stand_in_one_row(dossier: dict[str, Any]) -> None:
    releases = population(dossier, "cardiology")["releases"]
    rows = release_rows(releases)
    assert [row["count"] for row in rows] == [3, 1, 2]
    assert rows[0]["rounds"] == "1–3"
    assert [row["unseen"] for row in rows] == [0, 0, 1]
    assert (rows[2]["from"], rows[2]["to"]) == (releases[3]["time"], releases[5]["time"])
    assert rows[-1]["total"] == population(dossier, "cardiology")["spent"]
    for name in ("variance", "cohort", "dataset", "unit", "delta", "sampling_rate"):
        other = {**releases[0], name: "another"}
        assert [row["count"] for row in release_rows([releases[0], other, releases[1]])] == [1, 2]


NASTY = "<b>&\"'</style>{{ 7 * 7 }}"


def test_every_name_is_shown_as_text() -> None:
    site = Site()
    site.budget(NASTY, 3.0, reason=f"why {NASTY}", operator=f"who {NASTY}")
    site.release(NASTY, "study", 4.0, dataset=f"data {NASTY}", unit=f"unit {NASTY}")
    with site.database.transaction() as connection:
        refusal = Refusal(RefusalCode.BUDGET, f"message {NASTY}", "")
        site.ledger.refuse(connection, refusal, reservation=site.reservation(NASTY, "more", 0.5, dataset=f"data {NASTY}"))
    labels = {digest("study"): StudyLabel(f"name {NASTY}", "statistics", "alice")}
    text = render(site.describe(studies=labels, title=f"title {NASTY}", contact=f"contact {NASTY}"))
    parsed = Page(text)
    assert "b" not in {tag for tag, _ in parsed.tags[parsed.tags.index(("nav", {"aria-label": "Parts"})) :]}
    for words in ("why", "who", "data", "unit", "message", "name", "title", "contact"):
        assert f"{words} {NASTY}" in parsed.text
    assert html.escape(NASTY, quote=False).replace('"', "&#34;").replace("'", "&#39;") in text
    check_self_contained(text)


def test_an_empty_ledger_has_a_dossier() -> None:
    site = Site()
    text = render(site.describe())
    parsed = Page(text)
    assert "Nothing was released, and no budget was set." in parsed.text
    assert parsed.named("svg") == []
    nothing = describe([], replace(proof_of(site), entries=0, head=""), site="north", made=0)
    assert "an empty ledger" in Page(render(nothing)).text


def test_a_budget_without_releases_has_a_dossier() -> None:
    site = Site()
    site.budget("heart", 2.0)
    parsed = Page(render(site.describe()))
    assert "Nothing about anyone has been released." in parsed.text
    assert parsed.row("Left")[1] == "2"


def test_a_population_without_a_budget_may_release_nothing() -> None:
    site = Site()
    site.refuse(RefusalCode.BUDGET, population="heart", study=digest("early"), dataset="heart-2025")
    data = site.describe()
    parsed = Page(render(data))
    assert "has set no budget" in parsed.text
    assert population(data, "heart")["delta"] is None
    assert parsed.row("Left")[1] == "nothing"


def test_an_unlimited_budget_and_a_release_without_noise() -> None:
    site = Site()
    site.budget("heart", None)
    site.release("heart", "noisy", 4.0)
    before = site.describe()
    assert (population(before, "heart")["left"], population(before, "heart")["after_all"]) == (None, None)
    assert "The site set no bound on what may be lost." in Page(render(before)).text
    site.release("heart", "exact", 0.0, kind="none")
    data = site.describe()
    heart = population(data, "heart")
    assert (heart["spent"], heart["alone"], heart["reserved"], heart["estimate"]) == ("infinite", "infinite", "infinite", None)
    assert heart["releases"][0]["total"] == pytest.approx(oracle([4.0]), rel=2e-3)
    assert (heart["releases"][1]["epsilon"], heart["sites"]) == ("infinite", [])
    text = render(data)
    parsed = Page(text)
    for words in ("No limit can be stated.", "none: exact sum", "no bound: released without noise"):
        assert words in parsed.text
    assert parsed.row("Spent: the guarantee")[1] == "infinite"
    check_self_contained(text)


def test_a_budget_below_what_is_spent_is_called_so() -> None:
    site = Site()
    site.budget("heart", 3.0)
    site.release("heart", "study", 4.0)
    site.budget("heart", 0.5, reason="stop")
    data = site.describe()
    assert population(data, "heart")["budgets"][-1]["below_spent"] is True
    assert population(data, "heart")["left"] == 0.0
    parsed = Page(render(data))
    assert "below what was spent by then" in parsed.text
    assert "More is spent than the budget in force allows" in parsed.text


def test_a_strict_budget_is_priced_strictly() -> None:
    site = Site()
    site.budget("heart", 3.0)
    site.release("heart", "study", 4.0)
    standard = population(site.describe(), "heart")
    site.budget("heart", 3.0, adaptive="strict")
    strict = population(site.describe(), "heart")
    assert (standard["adaptive"], strict["adaptive"]) == ("standard", "strict")
    assert [change["adaptive"] for change in strict["budgets"]] == ["standard", "strict"]
    assert strict["spent"] > standard["spent"]
    assert strict["curve"][-1]["spent"] == strict["spent"]
    assert standard["releases"][0]["total"] == strict["releases"][0]["total"]  # what it was then


def test_a_recovered_charge_counts_and_is_called_so(tmp_path: Path) -> None:
    trial = Trial(("north", "south"), place=lambda name: tmp_path / f"{name}.db", epsilon=3.0)
    north = trial.ledgers["north"]
    release = trial.release(1)
    trial.reserve(release)
    shown = trial.show(release)
    trial.free("north", release)
    with north.database.transaction() as connection:
        north.recover(connection, shown.receipts[0], "heart")
    reader = LedgerReader(north.database)
    data = describe(reader.entries(), check(reader).proof(reader, 1), site="north", made=1)
    (item,) = population(data, "heart")["releases"]
    assert (item["recovered"], item["seen"]) == (True, False)
    assert population(data, "heart")["reserved"] == population(data, "heart")["spent"] == reader.spending("heart").spent
    assert "1 charged after a restored backup" in Page(render(data)).text


def test_a_recovered_charge_without_any_budget_has_no_bound(tmp_path: Path) -> None:
    trial = Trial(("north", "south"), place=lambda name: tmp_path / f"{name}.db", epsilon=3.0)
    shown = trial.play(1)
    fresh = open_ledger(":memory:", clock=trial.clock)
    with fresh.database.transaction() as connection:
        fresh.recover(connection, shown.receipts[0], "heart")
    reader = LedgerReader(fresh.database)
    data = describe(reader.entries(), check(reader).proof(reader, 1), site="north", made=1)
    heart = population(data, "heart")
    assert (data["proof"]["valid"], heart["spent"], heart["delta"], heart["sites"]) == (True, "infinite", None, [])
    assert "has set no budget" in Page(render(data)).text


def proof_of(site: Site) -> Proof:
    reader = LedgerReader(site.database)
    return check(reader).proof(reader, site.clock.time)


def test_a_failed_verification_is_told_in_words_first(dossier: dict[str, Any]) -> None:
    site = lively()
    fault = "Ledger entry 7 fails: it was changed."
    proof = replace(proof_of(site), valid=False, fault=fault, fault_entry=7)
    data = describe(LedgerReader(site.database).entries(), proof, site="north", made=1)
    parsed = Page(render(data))
    assert parsed.text.index("DOES NOT VERIFY. Do not sign") < parsed.text.index(fault) < parsed.text.index("1 Summary")
    assert "Not to be signed." in parsed.text
    assert "The record verifies." not in parsed.text
    assert data["proof"]["proves"] == []
    assert parsed.row("First entry that fails")[1] == "7"
    assert "fails" in str([attributes.get("class") for attributes in parsed.named("div")])


def many(count: int, studies: int) -> list[Entry]:
    """A long ledger's entries: budget, then reservations and charges of releases of four kinds."""
    first = Entry(1, 1, Kind.GENESIS, *[None] * 11, {}, b"", b"\1" * 32, b"")
    entries = [
        first,
        replace(first, seq=2, kind=Kind.BUDGET, population="heart", delta=DELTA, detail={"epsilon": (60.0).hex()}),
    ]
    kinds = [Mechanism(GRID, plan_noise("distributed", (250 * GRID + kind) ** 2, 4, 1)) for kind in range(4)]
    for index in range(count):
        context = index.to_bytes(32, "big")
        charge = replace(
            first, seq=2 * index + 4, time=1_700_000_000 + 600 * index, kind=Kind.CHARGE, study=digest(str(index % studies)),
            round=index // studies, attempt=1, population="heart", dataset="heart-2025", mechanism=kinds[index % 4],
            delta=DELTA, unit="record", cohort_size=4, colluders=1, context=context,
        )  # fmt: skip
        entries += [replace(charge, seq=charge.seq - 1, kind=Kind.RESERVE), charge]
    return entries


@pytest.mark.system
def test_a_ledger_of_ten_thousand_releases_stays_readable() -> None:
    entries = many(10_000, 60)
    proof = replace(proof_of(Site()), entries=len(entries))
    data = describe(entries, proof, site="north", made=1_800_000_000)
    heart = population(data, "heart")
    assert len(heart["releases"]) == 10_000
    assert heart["spent"] == pytest.approx(oracle([250 / 100.0]), rel=5e-3)  # 10,000 releases at 250 are one at 2.5
    text = render(data)
    assert len(text) < 1_000_000
    parsed = Page(text)
    assert "10,000 releases in 60 studies" in parsed.text
    assert f"Not drawn: {60 - MOST_BARS} more" in parsed.text
    rows = [row for row in parsed.rows if len(row) == 6 and "discrete Gaussian" in row[2]]
    counts = [int(re.findall(r"([\d,]+) releases?", row[0])[0].replace(",", "")) for row in rows]
    assert sum(counts) == 10_000
    check_self_contained(text)


def test_rows_beyond_the_most_stand_in_the_twin_only() -> None:
    entries = many(MOST_ROWS + 7, MOST_ROWS + 7)
    data = describe(entries, proof_of(Site()), site="north", made=1_800_000_000)
    parsed = Page(render(data))
    assert len([row for row in parsed.rows if len(row) == 6 and "discrete Gaussian" in row[2]]) == MOST_ROWS
    assert f"The latest {MOST_ROWS} rows; 7 earlier rows stand" in parsed.text


def numbers(pattern: str, text: str) -> list[tuple[float, ...]]:
    return [tuple(float(number) for number in found.groups()) for found in re.finditer(pattern, text)]


def test_the_curve_lies_where_the_axis_says(dossier: dict[str, Any]) -> None:
    heart = population(dossier, "cardiology")
    plot = str(charts.spending_plot(heart, charts.WIDE, "plot"))
    scale = numbers(r'<text x="34.0" y="([\d.]+)" text-anchor="end" fill="#\w+">([\d.]+)</text>', plot)
    (low, zero), (high, most) = scale[0], scale[-1]
    assert zero == 0.0
    assert most >= 4.0

    def epsilon(y: float) -> float:
        return (low - 4 - y) / (low - high) * most  # a label stands 4 pixels below its line

    curve = re.search(r'<path d="(M[^"]*)" fill="none" stroke="#0b4f6c"', plot)
    assert curve is not None
    assert epsilon(float(curve[1].rsplit("V", 1)[1].split("H")[0])) == pytest.approx(heart["spent"], abs=0.03)
    limit = re.search(r'<path d="M[\d.]+ ([\d.]+)H[\d.]+L[\d.]+ ([\d.]+)H', plot)
    assert limit is not None
    assert [epsilon(float(y)) for y in limit.groups()] == pytest.approx([3.0, 5.0], abs=0.03)
    crosses = numbers(r'd="M(\d+) (\d+)l8 8m0 -8l-8 8"', plot)
    assert sorted(epsilon(y + 4) for _, y in crosses) == pytest.approx(
        sorted(min(refusal["after"], 1.12 * 5.0) for refusal in heart["refusals"]), abs=0.03
    )


def test_bars_are_as_long_as_their_costs(dossier: dict[str, Any]) -> None:
    heart = population(dossier, "cardiology")
    labels = {item["study"]: f"study {index}" for index, item in enumerate(heart["studies"])}
    plot = str(charts.study_bars(heart, labels, charts.NARROW, "bars"))
    lengths = [length for (length,) in numbers(r'<rect x="0.5" y="[\d.]+" width="([\d.]+)"', plot)]
    ordered = sorted(heart["studies"], key=lambda item: -item["epsilon"])
    costs = [
        item[name]
        for item in [*ordered, {"epsilon": heart["spent"], "alone": heart["alone"]}]
        for name in ("epsilon", "alone")
    ]
    assert [length / lengths[-1] for length in lengths] == pytest.approx([cost / heart["alone"] for cost in costs], abs=0.002)
    assert lengths[-1] > 0.75 * charts.NARROW
    bar = str(charts.meter(heart, 502, "meter"))
    (_, _), (held, _), (used, _), _ = numbers(r'width="([\d.]+)" height="(16)', bar)
    assert (held / 500, used / 500) == pytest.approx((heart["reserved"] / 5, heart["spent"] / 5), abs=0.002)


def test_a_plot_without_any_finite_figure_has_a_readable_axis() -> None:
    step = {"entry": 1, "time": 100, "spent": 0.0, "budget": None}
    curve = [step, {**step, "time": 200, "spent": "infinite"}]
    shown = {"name": "open", "epsilon": None, "spent": "infinite", "curve": curve, "refusals": [], "releases": [1]}
    plot = str(charts.spending_plot(shown, charts.WIDE, "plot"))
    marks = re.findall(r'<text x="34.0" y="[\d.]+" text-anchor="end" fill="#\w+">([^<]+)</text>', plot)
    assert float(marks[0]) == 0
    assert len(marks) > 1
    assert max(map(len, marks)) <= 5  # more would be cut off at the left edge


def test_a_cross_at_the_end_leaves_the_budgets_label_readable() -> None:
    curve = [{"entry": 1, "time": time, "spent": 2.9, "budget": 3.0} for time in (100, 200)]
    shown = {"name": "heart", "epsilon": 3.0, "spent": 2.9, "curve": curve, "releases": [1]}
    ends = []
    for refusals in ([], [{"time": 200, "after": 3.2}]):
        plot = str(charts.spending_plot({**shown, "refusals": refusals}, charts.WIDE, "plot"))
        labels = re.findall(r'<text x="([\d.]+)"[^>]*>(?:budget 3|spent 2.9)<', plot)
        ends.append({float(x) for x in labels})
        assert len(labels) >= 2
    cross = charts.WIDE - 8  # the frame's right edge, where the refusal stands
    assert min(ends[0]) > cross - 4 > max(ends[1])


@given(st.integers(0, 4_000_000_000), st.integers(0, 2_000_000_000), st.integers(3, 8))
def test_ticks_are_few_and_in_order(first: int, span: int, most: int) -> None:
    found = ticks(first, first + span, most)
    times = [time for time, _ in found]
    assert times == sorted(set(times))
    assert all(first <= time <= first + span for time in times)
    assert 1 <= len(found) <= most + 1


def test_the_head_runs_at_the_foot_of_every_printed_page(dossier: dict[str, Any]) -> None:
    rule = re.search(r"@page \{(.*?)\n\}", render(dossier), re.DOTALL)
    assert rule is not None
    assert f"head {dossier['proof']['head']}" in rule[1]


# -- who asked, and on whose word ------------------------------------------------------------------------------------------


def wanted(study: str, **about: Any) -> RequestedStudy:
    values = {
        "name": study,
        "method": "statistics",
        "dataset": "heart-2025",
        "analyst": "alice",
        "population": "heart",
    } | about
    return RequestedStudy(digest(study), **values)


def governed() -> Site:
    """A site where people and the policy decided: approved by two, declined, expired, refused, and nobody asked."""
    site = Site()
    site.budget("heart", 3.0)
    with site.database.transaction() as connection:
        ledger = site.ledger
        ledger.record_policy(connection, {"policy.approval": '"policy"', "policy.max_epsilon": "1.0"})
    site.release("heart", "unasked", 4.0)
    with site.database.transaction() as connection:
        ledger.record_policy(connection, {"policy.approval": '"manual"', "policy.min_cohort": "3"})
        shown = hashlib.sha256(b"text").digest()
        for name in ("olga", "pia"):
            reason = "vote 7" if name == "olga" else ""
            ledger.decide(connection, wanted("agreed"), approved=True, operator=name, reason=reason, shown=shown)
        no = wanted("declined", purpose="curiosity", columns_read=("age", "sex"), analyst="bob")
        ledger.decide(connection, no, approved=False, operator="olga", reason="no vote", shown=shown)
        refusal = Refusal(RefusalCode.APPROVAL, "The operator declined the study: no vote")
        ledger.refuse(connection, refusal, population="heart", study=no.study, dataset=no.dataset, asked=no)
        ledger.expire(connection, wanted("late"), since=5, why="its time ran out")
        foreign = wanted("foreign", population=None, dataset="elsewhere", analyst="carol", method="pca")
        ledger.refuse(
            connection, Refusal(RefusalCode.DATASET, "not here"), study=foreign.study, dataset="elsewhere", asked=foreign
        )
    site.release("heart", "agreed", 4.0)
    return site


def test_the_dossier_says_who_asked_for_what_why_and_on_whose_word() -> None:
    site = governed()
    asks = {"computes": "means of age", "reads": "columns age of dataset heart-2025", "releases": "3 numbers in 1 sum at most"}
    stated = {"purpose": "to plan a trial", "reference": "vote 7"}
    labels = {digest("agreed"): StudyLabel("agreed", "statistics", "alice", (), None, stated, asks)}
    dossier = site.describe(studies=labels)
    accounts = {item["name"] or item["study"]: item for item in dossier["accounts"]}
    assert list(accounts) == [digest("unasked").hex(), "agreed", "declined", "late", "foreign"]
    said = {
        name: [(word["kind"], word["operator"], word["reason"]) for word in item["decisions"]]
        for name, item in accounts.items()
    }
    assert said == {
        digest("unasked").hex(): [],
        "agreed": [("approval", "olga", "vote 7"), ("approval", "pia", "")],
        "declined": [("decline", "olga", "no vote")],
        "late": [("expired", "", "its time ran out")],
        "foreign": [],
    }
    assert [item["approval"] for item in accounts.values()] == ["policy", "manual", "manual", "manual", "manual"]
    assert [(item["releases"], item["refusals"]) for item in accounts.values()] == [(1, 0), (1, 0), (0, 1), (0, 0), (0, 1)]
    assert (accounts["declined"]["purpose"], accounts["declined"]["columns"]) == ("curiosity", "age, sex")
    assert [step["changes"] for step in dossier["policy_changes"]] == [
        {"policy.approval": [None, '"policy"'], "policy.max_epsilon": [None, "1.0"]},
        {"policy.approval": ['"policy"', '"manual"'], "policy.max_epsilon": ["1.0", None], "policy.min_cohort": [None, "3"]},
    ]
    text = render(dossier)
    page = Page(text)
    check_self_contained(text)
    for words in (
        "asked by alice, statistics; approved by olga; approved by pia", "asked by bob, statistics; declined by olga",
        "asked by carol, pca", "to plan a trial", "reference: vote 7", "curiosity", "columns: age, sex",
        "computes: means of age",
        "the policy’s, which asked nobody", "ended without an answer", "by whom is not known here any more",
        "policy.max_epsilon: 1.0 → left out",
    ):  # fmt: skip
        assert words in page.text, words
    assert len(page.named("caption")) == len(page.named("table"))


def test_no_text_of_a_study_is_markup() -> None:
    site = Site()
    site.budget("heart", 3.0)
    with site.database.transaction() as connection:
        texts = {"name": "name", "analyst": "analyst", "method": "method", "purpose": "purpose"}
        asked = wanted("x", columns_read=(f"column {NASTY}",), **{key: f"{word} {NASTY}" for key, word in texts.items()})
        site.ledger.decide(connection, asked, approved=False, operator=f"who {NASTY}", reason=f"why {NASTY}", shown=bytes(32))
        site.ledger.record_policy(connection, {f"key {NASTY}": f"value {NASTY}"})
    text = render(site.describe(annexes=ANNEXES))
    parsed = Page(text)
    assert "b" not in {tag for tag, _ in parsed.tags[parsed.tags.index(("nav", {"aria-label": "Parts"})) :]}
    for words in (*texts.values(), "column", "who", "why", "key", "value"):
        assert f"{words} {NASTY}" in parsed.text
    check_self_contained(text)


def test_todays_policy_is_not_stated_of_the_past() -> None:
    """What decided is what the ledger had when a study came; where it has nothing, the page says so."""
    site = Site()
    site.budget("heart", 3.0)
    site.release("heart", "before any record", 4.0)
    (account,) = site.describe()["accounts"]
    assert account["approval"] is None
    assert "not recorded" in Page(render(site.describe())).text


# -- annexes for data protection -------------------------------------------------------------------------------------------

POLICY = {
    "approval": "manual", "require": ["purpose"], "four_eyes_above": 0.5, "units": ["record"], "max_epsilon": 1.0,
    "trusted": {}, "not_trusted": [], "noise": ["distributed"], "disclosures": ["joint"], "min_cohort": 3, "min_trusted": 2,
    "methods": ["statistics"], "tasks": [], "analysts": ["alice"],
}  # fmt: skip


def protected(**changes: Any) -> dict[str, Any]:
    stated = {"purpose": "to plan a trial", "legal_basis": "Article 9(2)(j)"}
    labels = {digest("agreed"): StudyLabel("agreed", "statistics", "alice", (), None, stated, {})}
    days = {"studies": 90, "kept_vectors": None, "log_days": 30}
    given = {"studies": labels, "policy": POLICY, "contact": "dpo@north.example", "annexes": ANNEXES, "retention": days}
    return governed().describe(**(given | changes))


def told(items: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    assert len({(item["part"], item["topic"]) for item in items}) == len(items)
    return {item["topic"]: " ".join(item["answer"]) for item in items}


def test_an_impact_assessment_is_drafted_from_the_records() -> None:
    """By Article 35(7); figures are those of the populations, and what only people know is a gap that says so."""
    dossier = protected()
    items, found = dossier["dpia"], told(dossier["dpia"])
    parts = list(dict.fromkeys(item["part"] for item in items))
    letters = [part.partition("(Article 35(7)(")[2][:1] for part in parts]
    assert letters == ["a", "b", "c", "d", "", ""]
    assert all(item["answer"] or item["gap"] for item in items)
    assert sum(bool(item["gap"]) for item in items) >= 10
    (heart,) = dossier["populations"]
    guess = math.ceil(1000 * heart["meaning"]["guess"] - 1e-9) / 10
    risk = "What somebody can conclude who sees every release, and knows everything else"
    assert f"right at most {guess:g} times in 100" in found[risk]
    end = math.ceil(1000 * heart["after_all"]["guess"] - 1e-9) / 10
    assert f"right {end:g} times in 100" in found["At the end of the budgets that are set"]
    assert "5 studies asked; 2 of them led to releases." in found["The processing"]
    assert "agreed, by alice, statistics: 1 release" in found["Studies that led to releases"]
    assert "“to plan a trial” (agreed)." in found["Purposes, as the analysts signed them"]
    assert "“curiosity” (declined)." in found["Purposes, as the analysts signed them"]
    assert found["Legal bases, as stated"] == "“Article 9(2)(j)”."
    assert "2 requests were refused" in found["Why less would not do"]
    assert "states purpose" in found["Why less would not do"]
    assert "2 approvals, 1 decline, 1 without an answer, by olga and pia" in found["Human decisions"]
    assert "Above epsilon 0.5 two people decide." in found["Human decisions"]
    assert "No audit on this site’s machine" in found["Measured"]


@given(st.text(alphabet="#>|{}% \nax", min_size=1), st.text(alphabet="#>|{}% \nax", min_size=1))
def test_nothing_that_a_study_says_is_structure_of_an_annex(purpose: str, basis: str) -> None:
    """An analyst's words can begin neither a question nor an answer, nor fill an officer's gap; they stand as given."""
    plain = protected(annexes=())
    innocent = [(item.part, item.topic, item.gap, len(item.answer)) for item in impact_assessment(plain)]
    (agreed,) = [account for account in plain["accounts"] if account["name"] == "agreed"]
    agreed["purpose"], agreed["stated"] = purpose, {"purpose": purpose, "legal_basis": basis}
    items = impact_assessment(plain)
    assert [(item.part, item.topic, item.gap, len(item.answer)) for item in items] == innocent
    found = {item.topic: item.answer for item in items}
    assert f"“{purpose}” (agreed)." in found["Purposes, as the analysts signed them"]
    assert found["Legal bases, as stated"] == (f"“{basis}”.",)
    assert any(line.endswith(f"; purpose: {purpose}.") for line in found["Studies that led to releases"])


def test_a_record_of_processing_is_drafted_by_its_letters() -> None:
    dossier = protected()
    items, found = dossier["art30"], told(dossier["art30"])
    assert [item["topic"][:3] for item in items] == [f"({letter})" for letter in "abcdefg"]
    assert all(item["gap"] for item in items)
    assert "dpo@north.example" in found[next(iter(found))]
    assert "Analysts who got results: alice." in " ".join(found.values())
    assert "bob" not in found["(d) Recipients"]  # was declined
    assert "age, sex" in found["(c) Categories of data subjects and of personal data"]
    rows = {row["what"].split(":")[0].split(",")[0]: row["until"] for row in dossier["retention"]}
    assert (
        rows["Signed studies that are over"]
        == rows["Noised vectors that alignments kept"]
        == "90 days after the study has expired"
    )
    assert rows["Logs"] == "30 days"
    assert rows["The ledger"] == "the site leaves the federation"
    unknown = protected(retention=None)["retention"]
    assert sum("not at hand" in row["until"] for row in unknown) == 3


@pytest.mark.parametrize("names", [(), ("nist",), ("dpia",), ("art30",), ANNEXES])
def test_a_dossier_has_the_annexes_that_were_asked_for(names: tuple[str, ...]) -> None:
    dossier = protected(annexes=names)
    assert [name for name in ("annex", "dpia", "art30") if name in dossier] == [
        {"nist": "annex"}.get(name, name) for name in names
    ]
    text = render(dossier)
    page = Page(text)
    check_self_contained(text)
    assert all(f'id="{name}"' in text for name in names if name != "nist")
    assert ("To be written:" in page.text) is bool({"dpia", "art30"} & set(names))
    assert len(page.named("caption")) == len(page.named("table"))


def test_annexes_of_an_empty_ledger_have_no_figures() -> None:
    dossier = Site().describe(annexes=ANNEXES)
    text = " ".join([*told(dossier["dpia"]).values(), *told(dossier["art30"]).values()])
    assert "Nothing was released." in text
    assert "No budget was set." in text
    render(dossier)
