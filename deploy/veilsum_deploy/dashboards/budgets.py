"""The dashboard of privacy budgets: what is spent, what is left, for how long, and whether the ledgers verify."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from veilsum_deploy.dashboards.builders import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    YELLOW,
    Built,
    Column,
    Query,
    Steps,
    Words,
    bars,
    board,
    gauge,
    lines,
    place,
    stat,
    states,
    table,
    variable,
)

UID = "veilsum-budgets"

SITE = 'site=~"$site"'
S = f'{SITE},population=~"$population"'
USED: Steps = ((None, GREEN), (0.8, ORANGE), (0.95, RED))
"""The two steps at which budgets alert."""

DAYS = "suffix: days"
DAYS_LEFT: Steps = ((None, RED), (7, ORANGE), (30, GREEN))
STALE: Steps = ((None, GREEN), (26 * 3600, YELLOW), (72 * 3600, RED))
"""Ages of a verification; a site verifies every 24 hours unless its configuration says otherwise."""

VERIFIED: Words = {"0": ("FAILED", RED), "1": ("verified", GREEN)}
NO_BOUND, ENDLESS = 1e6, 3650
"""What stands for an unlimited budget (1000 is the largest bounded one) and for ten years or more."""

UNLIMITED: Words = {"1000000": ("unlimited", GREY)}
BEYOND: Words = {str(ENDLESS): ("over 10 years", GREEN)}
KEY = "site, population"


def spent(where: str = S) -> str:
    """Epsilon of all charged releases, by site and population."""
    return f"max by ({KEY}) (veilsum_epsilon_spent{{{where}}})"


def reserved(where: str = S) -> str:
    """Epsilon of charged and open releases together."""
    return f"max by ({KEY}) (veilsum_epsilon_reserved{{{where}}})"


def budget(where: str = S) -> str:
    """Epsilon of the budget, infinite without a bound."""
    return f"max by ({KEY}) (veilsum_epsilon_budget{{{where}}})"


def left(where: str = S) -> str:
    """Epsilon that is neither spent nor reserved."""
    return f"max by ({KEY}) (veilsum_epsilon_left{{{where}}})"


def pace(where: str = S) -> str:
    """Epsilon a day, as spent over the last seven days; days before the first scrape count as days without a release."""
    metric = f"veilsum_epsilon_spent{{{where}}}"
    return f"max by ({KEY}) ({metric} - min_over_time({metric}[7d])) / 7"


def days_left(where: str = S) -> str:
    """Days until nothing is left at that pace, ten years at most."""
    return f"clamp_max({left(where)} / clamp_min({pace(where)}, 1e-9), {ENDLESS})"


def verified_ago(where: str) -> str:
    """Seconds since a ledger was verified; 0 before the first verification."""
    verified = f"veilsum_ledger_verified_timestamp_seconds{{{where}}}"
    return f"(time() - {verified}) * ({verified} > bool 0)"


def build(runbooks: str) -> Dashboard:
    """The dashboard, laid out.

    Args:
        runbooks: URL that the alerts' runbooks lie under.
    """
    variables = [
        variable("site", "Site", "Sites whose participant is scraped.", "label_values(veilsum_epsilon_budget, site)"),
        variable(
            "population",
            "Population",
            "Populations that have a budget.",
            f"label_values(veilsum_epsilon_budget{{{SITE}}}, population)",
        ),
        variable(
            "coordinator",
            "Coordinator",
            "Coordinators that are scraped, by the address of their metrics.",
            'label_values(veilsum_build_info{role="coordinator"}, instance)',
        ),
    ]
    says = "What the sites' ledgers say: epsilon by RDP, at each budget's delta. The ledger decides; these are its figures."
    made = board(UID, "Privacy budgets", says, variables, since="now-7d", refresh="1m", runbooks=runbooks)
    return place(
        made,
        [
            ("Now", _now()),
            ("Budgets", _budgets()),
            ("Pace", _pace()),
            ("Ledgers", _ledgers()),
            ("What the coordinator knows", _mirror()),
        ],
    )


def _now() -> list[Built]:
    used = f"{spent()} / {budget()}"
    return [
        stat(
            "Budgets",
            "Populations with a budget, over all chosen sites.",
            Query(f"count({budget()})"),
            steps=((None, BLUE),),
        ),
        stat(
            "At 80% or more",
            "Budgets of which 80% or more is spent.",
            Query(f"count({used} >= 0.8) or vector(0)"),
            steps=((None, GREEN), (1, ORANGE)),
            runbooks=["budget-80"],
        ),
        stat(
            "At 95% or more",
            "Budgets of which 95% or more is spent: most studies will be refused.",
            Query(f"count({used} >= 0.95) or vector(0)"),
            steps=((None, GREEN), (1, RED)),
            runbooks=["budget-95"],
        ),
        stat(
            "Gone within a week",
            "Budgets that are used up within seven days if the pace of the last seven days goes on.",
            Query(f"count({days_left()} < 7) or vector(0)"),
            steps=((None, GREEN), (1, ORANGE)),
            runbooks=["budget-gone-in-a-week"],
        ),
        stat(
            "Refused for budget",
            "Refusals of the sites because a budget did not bear a study or a round, in the time shown.",
            Query(f'sum(increase(veilsum_refusals_total{{{SITE},reason="budget-exceeded"}}[$__range]))'),
            steps=((None, GREEN), (1, YELLOW)),
            decimals=0,
            runbooks=["refusals"],
        ),
        stat(
            "Ledgers",
            "Whether every chosen site's ledger verified, entry by entry, when it was last tried.",
            Query(f"min(veilsum_ledger_verified{{{SITE}}})"),
            words=VERIFIED,
            runbooks=["ledger-verification-failed"],
        ),
        stat(
            "Oldest verification",
            "How long ago the ledger was verified that waits longest.",
            Query(f"max({verified_ago(SITE)})"),
            unit="s",
            steps=STALE,
            decimals=0,
            runbooks=["ledger-verification-stale"],
        ),
        stat(
            "Entries in ledgers",
            "Entries of all chosen sites' ledgers.",
            Query(f"sum(veilsum_ledger_entries{{{SITE}}})"),
            steps=((None, BLUE),),
        ),
    ]


def _budgets() -> list[Built]:
    return [
        gauge(
            "Spent, of the budget",
            "Share of each budget that is spent for good. An unlimited budget stands at 0.",
            Query(f"{spent()} / {budget()}", "{{site}} {{population}}"),
            unit="percentunit",
            most=1,
            steps=USED,
            decimals=0,
            size=(12, 6),
            runbooks=["budget-80", "budget-95"],
        ),
        gauge(
            "Spent or reserved, of the budget",
            "Share that is spent or held for a round that runs: what a new study is held against.",
            Query(f"{reserved()} / {budget()}", "{{site}} {{population}}"),
            unit="percentunit",
            most=1,
            steps=USED,
            decimals=0,
            size=(12, 6),
            runbooks=["budget-80", "budget-95"],
        ),
        table(
            "Budgets",
            "Epsilon of each population at its budget's delta. Days before the first scrape count as days without a release, "
            "so a new population shows too slow a pace for a week.",
            [
                Query(budget_or_more(budget())),
                Query(spent()),
                Query(reserved()),
                Query(budget_or_more(left())),
                Query(f"{spent()} / {budget()}"),
                Query(f"7 * {pace()}"),
                Query(days_left()),
                Query(f"max by ({KEY}) (veilsum_budget_delta{{{S}}})"),
            ],
            {
                "site": Column("Site"),
                "population": Column("Population"),
                "A": Column("Budget", "none", words=UNLIMITED),
                "B": Column("Spent", "none", decimals=3),
                "C": Column("Spent or reserved", "none", decimals=3),
                "D": Column("Left", "none", words=UNLIMITED, decimals=3),
                "E": Column("Used", "percentunit", USED, decimals=1),
                "F": Column("Last 7 days", "none", decimals=3),
                "G": Column("Lasts", DAYS, DAYS_LEFT, BEYOND, decimals=0),
                "H": Column("Delta", "sci"),
            },
            sort="Used",
            descending=True,
            size=(24, 6),
            runbooks=["budget-80", "budget-95", "budget-gone-in-a-week"],
        ),
    ]


def budget_or_more(expr: str) -> str:
    """Infinity as a number that a table can show in words."""
    return f"clamp_max({expr}, {NO_BOUND:g})"


def _pace() -> list[Built]:
    return [
        lines(
            "Epsilon spent",
            "Each step is a release. It never falls: what is spent stays spent.",
            Query(spent(), "{{site}} {{population}}"),
            decimals=2,
            size=(8, 8),
        ),
        lines(
            "Left, of the budget",
            "Share of each budget that new studies may still ask for. Only a larger budget lifts it. "
            "An unlimited budget stays at 100%.",
            Query(f"1 - {reserved()} / {budget()}", "{{site}} {{population}}"),
            unit="percentunit",
            steps=((None, RED), (0.05, ORANGE), (0.2, GREEN)),
            size=(8, 8),
            runbooks=["budget-80", "budget-gone-in-a-week"],
        ),
        bars(
            "Days left at this pace",
            "Days until nothing is left if the next weeks spend what the last seven days spent; ten years stand for longer.",
            Query(days_left(), "{{site}} {{population}}"),
            unit=DAYS,
            words=BEYOND,
            steps=DAYS_LEFT,
            decimals=0,
            most=365,
            size=(8, 8),
            runbooks=["budget-gone-in-a-week"],
        ),
    ]


def _ledgers() -> list[Built]:
    return [
        states(
            "Last verification",
            "Result of each site's own check of its ledger, entry by entry, at start and every day.",
            Query(f"max by (site) (veilsum_ledger_verified{{{SITE}}})", "{{site}}"),
            VERIFIED,
            size=(6, 8),
            runbooks=["ledger-verification-failed"],
        ),
        lines(
            "Age of the last verification",
            "A saw tooth that falls to 0 at every verification. One that only rises: the site stopped verifying.",
            Query(f"max by (site) ({verified_ago(SITE)})", "{{site}}"),
            unit="s",
            size=(6, 8),
            runbooks=["ledger-verification-stale"],
        ),
        bars(
            "Ledger entries by kind",
            "Entries of all chosen sites' ledgers. Reservations that are neither charged nor freed belong to open rounds.",
            Query(f"sum by (kind) (veilsum_ledger_entries{{{SITE}}})", "{{kind}}"),
            size=(6, 8),
        ),
        lines(
            "Refused for budget",
            "Refusals of each site because its budget did not bear what was asked.",
            Query(
                f'sum by (site) (increase(veilsum_refusals_total{{{SITE},reason="budget-exceeded"}}[$__rate_interval]))',
                "{{site}}",
            ),
            decimals=0,
            size=(6, 8),
            runbooks=["refusals", "budget-95"],
        ),
    ]


def _mirror() -> list[Built]:
    c = 'instance=~"$coordinator"'
    connected = f"max by (participant) (veilsum_participant_connected{{{c}}})"
    return [
        bars(
            "Epsilon of this coordinator's releases",
            "By the coordinator's mirror, at delta 1e-5. A site's own figure is at its budget's delta and counts every "
            "coordinator's releases, so it is not below this one at the same delta.",
            Query(
                f"max by (participant, dataset) (veilsum_epsilon_released{{{c}}}) or on (participant) 0 * {connected}",
                "{{participant}} {{dataset}}",
            ),
            decimals=2,
            size=(8, 8),
        ),
        table(
            "Budgets that sites share",
            "Sites whose policy shares their budget or their ledger's state with the coordinator; the others keep it to "
            "themselves, and the coordinator knows the releases of its own studies only.",
            [
                Query(
                    f"max by (participant) (veilsum_shared_epsilon_spent{{{c}}} / veilsum_shared_epsilon_budget{{{c}}})"
                    f" or {connected} * 0 - 1"
                ),
                Query(f"max by (participant) (veilsum_shared_ledger_verified{{{c}}}) or {connected} * 0 - 1"),
            ],
            {
                "participant": Column("Participant"),
                "A": Column("Largest share spent", "percentunit", USED, {"-1": ("not shared", GREY)}, decimals=1),
                "B": Column("Ledger", "none", words={**VERIFIED, "-1": ("not shared", GREY)}),
            },
            sort="Participant",
            size=(8, 8),
        ),
        lines(
            "Mirror entries",
            "Entries in the coordinator's copy of the sites' ledgers. It only grows; one that shrinks was tampered with.",
            Query(f"sum(veilsum_mirror_entries{{{c}}})", "entries"),
            decimals=0,
            size=(8, 8),
        ),
    ]
