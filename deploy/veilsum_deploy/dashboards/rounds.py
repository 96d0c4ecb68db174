"""The dashboard of rounds and health: what a coordinator's operator looks at first."""

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
    bars,
    board,
    lines,
    place,
    stat,
    states,
    table,
    variable,
)

UID = "veilsum-rounds"

C = 'instance=~"$coordinator"'
P = f'{C},participant=~"$participant"'
BAD = ((None, GREEN), (1, RED))
WORTH_A_LOOK = ((None, GREEN), (1, YELLOW))
EXPIRY = ((None, RED), (7, ORANGE), (30, GREEN))
DAYS = "suffix: days"
UP = {"0": ("no", RED), "1": ("yes", GREEN)}


def build(runbooks: str) -> Dashboard:
    """The dashboard, laid out.

    Args:
        runbooks: URL that the alerts' runbooks lie under.
    """
    variables = [
        variable(
            "coordinator",
            "Coordinator",
            "Coordinators that are scraped, by the address of their metrics.",
            'label_values(veilsum_build_info{role="coordinator"}, instance)',
        ),
        variable(
            "participant",
            "Participant",
            "Participants that the coordinator knows.",
            "label_values(veilsum_participant_connected, participant)",
        ),
        variable("method", "Method", "Methods of the studies.", f"label_values(veilsum_rounds_total{{{C}}}, method)"),
    ]
    says = "Rounds, participants and faults as the coordinator counts them. No value of a study, and no record, is in here."
    made = board(UID, "Rounds and health", says, variables, since="now-6h", refresh="30s", runbooks=runbooks)
    return place(
        made,
        [
            ("Now", _now()),
            ("Rounds", _rounds()),
            ("Participants", _participants()),
            ("Refusals and faults", _faults()),
            ("Privacy of what was released", _privacy()),
            ("Certificates and software", _certificates()),
        ],
    )


def _now() -> list[Built]:
    started = f"veilsum_open_round_started_timestamp_seconds{{{C}}}"
    return [
        stat(
            "Coordinator answers",
            "Whether Prometheus gets an answer from every chosen coordinator. If not, look at the process and its log first.",
            Query(f"min(up{{{C}}})"),
            words={"0": ("DOWN", RED), "1": ("up", GREEN)},
            runbooks=["target-down"],
        ),
        stat(
            "Participants connected",
            "Participants with an open session.",
            Query(f"sum(veilsum_connected_participants{{{C}}})"),
            steps=((None, RED), (2, GREEN)),
        ),
        stat(
            "Participants missing",
            "Participants that the coordinator knows and that have no open session now.",
            Query(f"count(veilsum_participant_connected{{{C}}}) - sum(veilsum_participant_connected{{{C}}})"),
            steps=((None, GREEN), (1, YELLOW), (2, RED)),
            runbooks=["participant-gone"],
        ),
        stat(
            "Oldest open round",
            "How long the oldest round that is still open has been open; 0 when none is.",
            Query(f"max((time() - {started}) * ({started} > bool 0))"),
            unit="s",
            steps=((None, GREEN), (3600, YELLOW), (4800, RED)),
            runbooks=["round-stuck"],
        ),
        stat(
            "Rounds released",
            "Rounds whose sum was opened, in the time shown.",
            Query(f'sum(increase(veilsum_rounds_total{{{C},method=~"$method",outcome="released"}}[$__range]))'),
            steps=((None, BLUE),),
            decimals=0,
        ),
        stat(
            "Rounds failed",
            "Rounds that were given up, in the time shown. Such a study ends; its log says why.",
            Query(f'sum(increase(veilsum_rounds_total{{{C},method=~"$method",outcome="failed"}}[$__range]))'),
            steps=BAD,
            decimals=0,
            runbooks=["round-stuck"],
        ),
        stat(
            "Refusals heard",
            "Refusals of participants in the time shown, whatever their reason. Below they stand by reason.",
            Query(f"sum(increase(veilsum_refusals_total{{{C}}}[$__range]))"),
            steps=WORTH_A_LOOK,
            decimals=0,
            runbooks=["refusals"],
        ),
        stat(
            "Next certificate expires in",
            "Of the coordinator's, the authority's and every participant's certificate, the one that expires first.",
            Query(
                f"(min(veilsum_certificate_expiry_timestamp_seconds{{{C}}}"
                f" or veilsum_participant_certificate_expiry_timestamp_seconds{{{C}}}) - time()) / 86400"
            ),
            unit=DAYS,
            steps=EXPIRY,
            decimals=0,
            runbooks=["certificate-expiring"],
        ),
    ]


def _rounds() -> list[Built]:
    counted = f'veilsum_rounds_total{{{C},method=~"$method"'
    started = f"veilsum_open_round_started_timestamp_seconds{{{C}}}"
    bucket = f"sum by (le, phase) (rate(veilsum_round_phase_seconds_bucket{{{C}}}[$__rate_interval]))"
    waiting = "A phase that grows while the others stay is where participants, or the network to them, are slow."
    return [
        lines(
            "Rounds per minute",
            "Rounds that ended, a minute, by how they ended.",
            Query(f"60 * sum by (outcome) (rate({counted}}}[$__rate_interval]))", "{{outcome}}"),
            colours={"released": GREEN, "failed": RED},
            size=(12, 8),
        ),
        table(
            "Rounds by method",
            "Rounds that ended in the time shown.",
            [
                Query(f'sum by (method) (increase({counted},outcome="released"}}[$__range]))'),
                Query(f'sum by (method) (increase({counted},outcome="failed"}}[$__range]))'),
            ],
            {
                "method": Column("Method"),
                "A": Column("Released", "none", ((None, GREY), (1, GREEN)), decimals=0),
                "B": Column("Failed", "none", ((None, GREY), (1, RED)), decimals=0),
            },
            sort="Released",
            descending=True,
            size=(7, 8),
        ),
        bars(
            "Studies by phase",
            "Studies in each phase. Enrolling, sealing and running ones wait for participants.",
            Query(f"sum by (phase) (veilsum_studies{{{C}}})", "{{phase}}"),
            size=(5, 8),
        ),
        lines(
            "Time by phase, median",
            f"Half of the rounds spent no longer in this phase. {waiting}",
            Query(f"histogram_quantile(0.5, {bucket})", "{{phase}}"),
            unit="s",
            size=(6, 8),
        ),
        lines(
            "Time by phase, 95th percentile",
            f"One round of twenty spent longer in this phase. {waiting}",
            Query(f"histogram_quantile(0.95, {bucket})", "{{phase}}"),
            unit="s",
            size=(6, 8),
        ),
        lines(
            "Age of the oldest open round",
            "A saw tooth is healthy: every round ends and the next begins. A slope that only rises is a round that is stuck.",
            Query(f"max((time() - {started}) * ({started} > bool 0))", "oldest open round"),
            unit="s",
            size=(6, 8),
            runbooks=["round-stuck"],
        ),
        lines(
            "Attempts of rounds",
            "Attempts that began, and why: the first of a round, or again because a participant refused, was absent or late.",
            Query(f"sum by (reason) (increase(veilsum_round_attempts_total{{{C}}}[$__rate_interval]))", "{{reason}}"),
            stacked=True,
            colours={"first": GREEN, "refused": YELLOW, "absent": ORANGE, "late": RED},
            size=(6, 8),
            runbooks=["refusals"],
        ),
    ]


def _participants() -> list[Built]:
    return [
        table(
            "Participants",
            "Every participant that the coordinator knows: its session, its contributions in the time shown, its certificate.",
            [
                Query(f"max by (participant) (veilsum_participant_connected{{{P}}})"),
                Query(f"time() - max by (participant) (veilsum_participant_last_seen_timestamp_seconds{{{P}}})"),
                Query(f"sum by (participant) (increase(veilsum_contributions_total{{{P}}}[$__range]))"),
                Query(f"sum by (participant) (increase(veilsum_contribution_bytes_total{{{P}}}[$__range]))"),
                Query(
                    "(min by (participant) "
                    f"(veilsum_participant_certificate_expiry_timestamp_seconds{{{P}}}) - time()) / 86400"
                ),
            ],
            {
                "participant": Column("Participant"),
                "A": Column("Connected", "none", words=UP),
                "B": Column("Last seen ago", "s", ((None, GREEN), (300, YELLOW), (3600, RED)), decimals=0),
                "C": Column("Contributions", "none", decimals=0),
                "D": Column("Uploaded", "decbytes", decimals=1),
                "E": Column("Certificate", DAYS, EXPIRY, decimals=0),
            },
            sort="Participant",
            size=(14, 8),
            runbooks=["participant-gone", "certificate-expiring"],
        ),
        states(
            "Sessions",
            "When each participant had an open session.",
            Query(f"max by (participant) (veilsum_participant_connected{{{P}}})", "{{participant}}"),
            {"0": ("away", RED), "1": ("connected", GREEN)},
            size=(10, 8),
            runbooks=["participant-gone"],
        ),
        lines(
            "Contributions per minute",
            "Complete contributions, a minute. A curve that leaves the others is a site that drops out of rounds.",
            Query(
                f"60 * sum by (participant) (rate(veilsum_contributions_total{{{P}}}[$__rate_interval]))", "{{participant}}"
            ),
            size=(8, 8),
        ),
        lines(
            "Upload",
            "Ciphertext that the coordinator received.",
            Query(
                f"sum by (participant) (rate(veilsum_contribution_bytes_total{{{P}}}[$__rate_interval]))", "{{participant}}"
            ),
            unit="Bps",
            size=(8, 8),
        ),
        lines(
            "Silence",
            "How long nothing has been heard of each participant that was seen before.",
            Query(
                f"max by (participant) (time() - (veilsum_participant_last_seen_timestamp_seconds{{{P}}} > 0))",
                "{{participant}}",
            ),
            unit="s",
            size=(8, 8),
            runbooks=["participant-gone"],
        ),
    ]


def _faults() -> list[Built]:
    def fresh(name: str, by: str = "") -> str:
        return f"sum{by} (increase({name}{{{C}}}[$__rate_interval]))"

    return [
        bars(
            "Refusals by reason",
            "The most frequent refusals that the coordinator heard in the time shown. Only the code leaves a site: the words "
            "stand in its own log and ledger.",
            Query(f"topk(10, sum by (reason) (increase(veilsum_refusals_total{{{C}}}[$__range])))", "{{reason}}"),
            steps=((None, BLUE), (1, YELLOW)),
            decimals=0,
            size=(6, 9),
            runbooks=["refusals"],
        ),
        bars(
            "Rejected messages by reason",
            "Messages that ended in a typed error in the time shown. Many that are malformed may be an attack.",
            Query(f"topk(10, sum by (reason) (increase(veilsum_rejected_messages_total{{{C}}}[$__range])))", "{{reason}}"),
            steps=((None, BLUE), (1, YELLOW)),
            decimals=0,
            size=(6, 9),
        ),
        lines(
            "Faults over time",
            "Anything above zero is worth a look into the coordinator's log.",
            Query(fresh("veilsum_refusals_total"), "refusals"),
            Query(fresh("veilsum_rejected_messages_total"), "rejected messages"),
            Query(fresh("veilsum_decode_failures_total", " by (stage)"), "decode failures: {{stage}}"),
            Query(fresh("veilsum_database_errors_total"), "database errors"),
            size=(8, 9),
            runbooks=["refusals"],
        ),
        stat(
            "Decoding and database",
            "Messages and sums that could not be decoded, and calls to the database that failed, in the time shown. A sum "
            "counts here when its tags are wrong: somebody contributed something else than was agreed.",
            Query(f"sum by (stage) (increase(veilsum_decode_failures_total{{{C}}}[$__range]))", "{{stage}} not decoded"),
            Query(f"sum(increase(veilsum_database_errors_total{{{C}}}[$__range]))", "database errors"),
            steps=BAD,
            decimals=0,
            size=(4, 9),
        ),
    ]


def _privacy() -> list[Built]:
    return [
        bars(
            "Noise multiplier of the last release",
            "Standard deviation of the noise over the sum's sensitivity, by method. The smaller, the more a release costs; 0 "
            "stands for no release yet, or one without noise.",
            Query(f'max by (method) (veilsum_release_noise_multiplier{{{C},method=~"$method"}})', "{{method}}"),
            words={"0": ("none yet", GREY)},
            decimals=2,
            size=(8, 9),
        ),
        lines(
            "Epsilon released, by this coordinator's mirror",
            "What this coordinator's releases have cost each participant's records, at delta 1e-5, as the mirror's entries "
            "compose; of several datasets, the dearest. A site's own ledger also counts what other coordinators released.",
            Query(
                f"max by (participant) (veilsum_epsilon_released{{{P}}})"
                f" or 0 * max by (participant) (veilsum_participant_connected{{{P}}})",
                "{{participant}}",
            ),
            decimals=2,
            size=(8, 9),
        ),
        lines(
            "Mirror entries",
            "Entries in the coordinator's copy of the sites' ledgers. It only grows; one that shrinks was tampered with.",
            Query(f"sum(veilsum_mirror_entries{{{C}}})", "entries"),
            decimals=0,
            size=(8, 9),
        ),
    ]


def _certificates() -> list[Built]:
    return [
        bars(
            "Days until certificates expire",
            "The coordinator's own certificate and its authority's. Renew at 30 days; they are reloaded without a restart.",
            Query(
                f"(min by (certificate) (veilsum_certificate_expiry_timestamp_seconds{{{C}}}) - time()) / 86400",
                "{{certificate}}",
            ),
            unit=DAYS,
            steps=EXPIRY,
            decimals=0,
            size=(8, 5),
            runbooks=["certificate-expiring"],
        ),
        table(
            "Software",
            "Versions that run, by role, of all processes that this Prometheus scrapes.",
            [Query("count by (role, version) (veilsum_build_info)")],
            {"role": Column("Role"), "version": Column("Version"), "A": Column("Processes", "none", decimals=0)},
            sort="Role",
            size=(8, 5),
        ),
        table(
            "What sites share",
            "Which groups of metrics each participant's policy shares with the coordinator: how many series of each. "
            "A site shares nothing unless its policy says so.",
            [
                Query(_shared("veilsum_shared_epsilon_budget")),
                Query(_shared("veilsum_shared_ledger_verified")),
                Query(_shared("veilsum_shared_step_seconds")),
                Query(_shared("veilsum_shared_certificate_expiry_timestamp_seconds")),
                Query(_shared("veilsum_shared_software_info")),
            ],
            {
                "participant": Column("Participant"),
                **{
                    letter: Column(title, "none", words={"0": ("-", GREY)}, decimals=0)
                    for letter, title in zip("ABCDE", ("Budgets", "Ledger", "Timings", "Certificate", "Software"), strict=True)
                },
            },
            sort="Participant",
            size=(8, 5),
        ),
    ]


def _shared(metric: str) -> str:
    """How many series of a shared metric the coordinator has of each participant, 0 for none."""
    return f"count by (participant) ({metric}{{{P}}}) or 0 * max by (participant) (veilsum_participant_connected{{{P}}})"
