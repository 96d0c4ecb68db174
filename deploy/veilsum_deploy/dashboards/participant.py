"""The dashboard of one participant: what the people at one site look at."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from veilsum_deploy.dashboards.budgets import (
    BEYOND,
    DAYS,
    DAYS_LEFT,
    STALE,
    UNLIMITED,
    USED,
    VERIFIED,
    budget,
    budget_or_more,
    days_left,
    left,
    pace,
    reserved,
    spent,
    verified_ago,
)
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
from veilsum_deploy.dashboards.rounds import EXPIRY

UID = "veilsum-participant"

S = 'site="$site"'
BAD = ((None, GREEN), (1, RED))


def build(runbooks: str) -> Dashboard:
    """The dashboard, laid out.

    Args:
        runbooks: URL that the alerts' runbooks lie under.
    """
    site = variable(
        "site",
        "Site",
        "The participant, by the label that its scrape configuration gives it.",
        'label_values(veilsum_build_info{role="participant"}, site)',
        many=False,
    )
    says = "One site's session, work, budget and ledger, from its own endpoint. Nothing here is sent to the coordinator."
    made = board(UID, "One participant", says, [site], since="now-6h", refresh="30s", runbooks=runbooks)
    return place(
        made,
        [
            ("Now", _now()),
            ("Rounds", _rounds()),
            ("Steps", _steps()),
            ("Budget", _budget()),
            ("Ledger and faults", _ledger()),
        ],
    )


def _now() -> list[Built]:
    return [
        stat(
            "Session",
            "Whether the participant has an open session with the coordinator. It dials out again by itself when it has none.",
            Query(f"max(veilsum_session_connected{{{S}}})"),
            words={"0": ("away", RED), "1": ("connected", GREEN)},
            runbooks=["participant-gone"],
        ),
        stat(
            "Last contact",
            "How long ago the coordinator was last heard.",
            Query(f"time() - max(veilsum_session_last_contact_timestamp_seconds{{{S}}})"),
            unit="s",
            steps=((None, GREEN), (120, YELLOW), (600, RED)),
            decimals=0,
            runbooks=["participant-gone"],
        ),
        stat(
            "Studies enrolled",
            "Studies that the site takes part in now.",
            Query(f"sum(veilsum_enrolled_studies{{{S}}})"),
            steps=((None, BLUE),),
        ),
        stat(
            "Studies that wait for you",
            "Studies that wait for the operator's word; `veilsum participant studies` lists them.",
            Query(f"sum(veilsum_studies_waiting{{{S}}})"),
            steps=((None, GREEN), (1, YELLOW)),
        ),
        stat(
            "Largest share spent",
            "Of all budgets of the site, the share that is spent of the one that is used most.",
            Query(f"max({spent(S)} / {budget(S)})"),
            unit="percentunit",
            steps=USED,
            decimals=1,
            runbooks=["budget-80", "budget-95"],
        ),
        stat(
            "Ledger",
            "Whether the site's ledger verified, entry by entry, when it was last tried.",
            Query(f"min(veilsum_ledger_verified{{{S}}})"),
            words=VERIFIED,
            runbooks=["ledger-verification-failed"],
        ),
        stat(
            "Last verification",
            "How long ago the ledger was last verified.",
            Query(f"max({verified_ago(S)})"),
            unit="s",
            steps=STALE,
            decimals=0,
            runbooks=["ledger-verification-stale"],
        ),
        stat(
            "Certificates expire in",
            "The site's own certificate or its authority's, whichever expires first.",
            Query(f"(min(veilsum_certificate_expiry_timestamp_seconds{{{S}}}) - time()) / 86400"),
            unit=DAYS,
            steps=EXPIRY,
            decimals=0,
            runbooks=["certificate-expiring"],
        ),
    ]


def _rounds() -> list[Built]:
    def counted(outcome: str) -> Query:
        return Query(f'sum by (method) (increase(veilsum_site_rounds_total{{{S},outcome="{outcome}"}}[$__range]))')

    return [
        states(
            "Session over time",
            "When the participant had an open session.",
            Query(f"max by (site) (veilsum_session_connected{{{S}}})", "{{site}}"),
            {"0": ("away", RED), "1": ("connected", GREEN)},
            size=(6, 8),
            runbooks=["participant-gone"],
        ),
        lines(
            "Rounds per minute",
            "Rounds of the site by how they ended. 'given-up' ones were tried again without it, or by it.",
            Query(
                f"60 * sum by (outcome) (rate(veilsum_site_rounds_total{{{S}}}[$__rate_interval]))",
                "{{outcome}}",
            ),
            colours={"released": GREEN, "given-up": ORANGE, "refused": RED},
            size=(6, 8),
        ),
        table(
            "Rounds by method",
            "Rounds of the site that ended in the time shown.",
            [counted("released"), counted("given-up"), counted("refused")],
            {
                "method": Column("Method"),
                "A": Column("Released", "none", ((None, GREY), (1, GREEN)), decimals=0),
                "B": Column("Given up", "none", ((None, GREY), (1, ORANGE)), decimals=0),
                "C": Column("Refused", "none", ((None, GREY), (1, RED)), decimals=0),
            },
            sort="Released",
            descending=True,
            size=(6, 8),
        ),
        lines(
            "Upload",
            "Ciphertext that the site sent. It is all that leaves, and without the others it opens to nobody.",
            Query(f"sum(rate(veilsum_site_contribution_bytes_total{{{S}}}[$__rate_interval]))", "ciphertext"),
            unit="Bps",
            size=(6, 8),
        ),
    ]


def _steps() -> list[Built]:
    bucket = f"sum by (le, step) (rate(veilsum_site_step_seconds_bucket{{{S}}}[$__rate_interval]))"
    return [
        lines(
            "Time by step, median",
            "Half of the times, a step took no longer.",
            Query(f"histogram_quantile(0.5, {bucket})", "{{step}}"),
            unit="s",
            size=(8, 8),
        ),
        lines(
            "Time by step, 95th percentile",
            "One of twenty took longer. A slow 'upload' is the network, a slow 'compute' is the machine or the data.",
            Query(f"histogram_quantile(0.95, {bucket})", "{{step}}"),
            unit="s",
            size=(8, 8),
        ),
        lines(
            "Contributions per minute",
            "Contributions that the site sent, and those among them whose computation failed on its records.",
            Query(f"60 * sum(rate(veilsum_site_contributions_total{{{S}}}[$__rate_interval]))", "contributions"),
            Query(f"60 * sum(rate(veilsum_site_computation_faults_total{{{S}}}[$__rate_interval]))", "failed"),
            size=(8, 8),
        ),
    ]


def _budget() -> list[Built]:
    return [
        gauge(
            "Spent or reserved, of the budget",
            "Share of each population's budget that is spent, or held for a round that runs.",
            Query(f"{reserved(S)} / {budget(S)}", "{{population}}"),
            unit="percentunit",
            most=1,
            steps=USED,
            decimals=0,
            size=(5, 8),
            runbooks=["budget-80", "budget-95"],
        ),
        lines(
            "Epsilon spent and reserved",
            "Spent is for good. What is reserved above it belongs to open rounds, and is charged or freed when they end.",
            Query(spent(S), "{{population}} spent"),
            Query(reserved(S), "{{population}} spent or reserved"),
            decimals=2,
            size=(8, 8),
        ),
        table(
            "Budgets",
            "Epsilon of each population at its budget's delta, and how long it lasts at the pace of the last seven days.",
            [
                Query(budget_or_more(budget(S))),
                Query(spent(S)),
                Query(budget_or_more(left(S))),
                Query(f"7 * {pace(S)}"),
                Query(days_left(S)),
            ],
            {
                "site": Column("Site", hidden=True),
                "population": Column("Population"),
                "A": Column("Budget", "none", words=UNLIMITED),
                "B": Column("Spent", "none", decimals=3),
                "C": Column("Left", "none", words=UNLIMITED, decimals=3),
                "D": Column("Last 7 days", "none", decimals=3),
                "E": Column("Lasts", DAYS, DAYS_LEFT, BEYOND, decimals=0),
            },
            sort="Population",
            size=(11, 8),
            runbooks=["budget-gone-in-a-week"],
        ),
    ]


def _ledger() -> list[Built]:
    return [
        bars(
            "Ledger entries by kind",
            "Entries of the site's ledger. Every charge needs a reservation before it.",
            Query(f"sum by (kind) (veilsum_ledger_entries{{{S}}})", "{{kind}}"),
            size=(7, 9),
        ),
        bars(
            "Refusals by reason",
            "What this site refused in the time shown, the most frequent first. The words stand in its log and its ledger.",
            Query(f"topk(10, sum by (reason) (increase(veilsum_refusals_total{{{S}}}[$__range])))", "{{reason}}"),
            steps=((None, BLUE), (1, YELLOW)),
            decimals=0,
            size=(7, 9),
            runbooks=["refusals"],
        ),
        stat(
            "Decoding and database",
            "Messages and sums that could not be decoded, and calls to the site's database that failed, in the time shown.",
            Query(f"sum by (stage) (increase(veilsum_decode_failures_total{{{S}}}[$__range]))", "{{stage}} not decoded"),
            Query(f"sum(increase(veilsum_database_errors_total{{{S}}}[$__range]))", "database errors"),
            steps=BAD,
            decimals=0,
            size=(4, 9),
        ),
        bars(
            "Days until certificates expire",
            "The site's own certificate and its authority's.",
            Query(
                f"(min by (certificate) (veilsum_certificate_expiry_timestamp_seconds{{{S}}}) - time()) / 86400",
                "{{certificate}}",
            ),
            unit=DAYS,
            steps=EXPIRY,
            decimals=0,
            size=(6, 9),
            runbooks=["certificate-expiring"],
        ),
    ]
