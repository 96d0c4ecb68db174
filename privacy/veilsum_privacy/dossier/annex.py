"""The dossier's annex: what NIST SP 800-226 asks of a claim of differential privacy, answered from ledger, policy and studies.

"Guidelines for Evaluating Differential Privacy Guarantees" (Near, Darais, Lefkovitz, Howarth, March 2025) orders what has to
be looked at as a pyramid: the guarantee on top, below it algorithms, utility and bias, deployment, security, and what was
exposed when data were collected; each level rests on those below. The items follow it, in our words. An answer says what this
site's records or this software's design show, and no more; what neither shows is said to be unanswered. Nothing here judges.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from veilsum_node.phrases import counted, listed
from veilsum_privacy.dossier import figures

Answered = Literal["answered", "partly answered", "not answered by this tool"]
Source = Literal["ledger", "policy", "studies", "audit", "software"]

Figures = Mapping[str, Any]
"""Plain data of a dossier, or a part of it."""


@dataclass(frozen=True)
class GuidelineItem:
    """One item of the guideline."""

    level: str
    topic: str
    answer: tuple[str, ...]
    answered: Answered
    sources: tuple[Source, ...]


GUARANTEE, ALGORITHMS = "The guarantee", "Algorithms and their correctness"
UTILITY, DEPLOYMENT = "Utility and bias", "Trust and deployment"
SECURITY, COLLECTION = "Security and access control", "Data collection exposure"


def annex(dossier: Figures) -> tuple[GuidelineItem, ...]:
    """All items, in order, for a dossier in plain data (with ``policy`` and ``audits``)."""
    return (
        *_guarantee(dossier),
        *_algorithms(dossier),
        *_utility(),
        *_deployment(dossier),
        *_security(dossier),
        *_collection(),
    )


def _item(level: str, topic: str, answered: Answered, sources: tuple[Source, ...], *answer: str) -> GuidelineItem:
    return GuidelineItem(level, topic, answer, answered, sources)


def _guarantee(dossier: Figures) -> Sequence[GuidelineItem]:
    topic = partial(_item, GUARANTEE)
    populations, policy = dossier["populations"], dossier["policy"]
    spent = [_spent(item) for item in populations] or ["Nothing was released and no budget was set."]
    deltas = [f"{item['name']}: {figures.small(item['delta'])}." for item in populations if item["delta"] is not None]
    units = [f"{item['name']}: {_units(item['units'])}." for item in populations]
    accepted = [] if policy is None else [f"The policy accepts studies whose unit is {listed(policy['units'], 'or')}."]
    once = [] if policy is None else [f"One study may cost epsilon {policy['max_epsilon']:g} at most (max_epsilon)."]
    return (
        topic("Privacy parameter epsilon", "answered", ("ledger", "policy", "studies"), *spent, *once, *_planned(dossier)),
        topic(
            "Delta",
            "partly answered",
            ("ledger",),
            *(deltas or ["No budget was set, so there is none."]),
            "It is of the population, over all studies together, not of a study. Whether it lies well below one "
            "divided by the number of records is for the site to judge: the ledger holds no number of records.",
        ),
        topic(
            "Variant of differential privacy",
            "answered",
            ("software",),
            "Approximate differential privacy (epsilon, delta), derived from every release by the rule that the budget "
            "names (see Composition and accounting). The estimate by the distribution of the privacy loss (PRV) is shown "
            "beside it and admits nothing.",
        ),
        topic(
            "Unit of privacy",
            "answered",
            ("ledger", "policy"),
            *units,
            *accepted,
            "“All records of one person” means all at this site that one value of the dataset’s subject column "
            "names; whether that column tells persons apart is not known to this tool. People with records at "
            "several sites: part 5.",
        ),
        topic(
            "Neighbouring data",
            "answered",
            ("software",),
            "One unit added or removed (unbounded), so a site’s number of records is protected as well, and is never"
            " used as if it were public.",
        ),
        topic(
            "Bounds on what a unit contributes",
            "partly answered",
            ("ledger", "software"),
            "What one unit can change is bounded before noise, by a public norm: its vector, or its gradients, are clipped"
            " to that, or where a site makes one vector of all its records, the task’s proof gives it. In grid units it is"
            " the sensitivity of each release in part 4. Columns have public bounds from the study’s schema.",
            "That those bounds were chosen without looking at records is the analyst’s and the site’s duty.",
        ),
        topic(
            "Other releases of the same data",
            "partly answered",
            ("ledger",),
            "Counted: every release of this software about a population in this federation. Not counted: what "
            "left by other ways, other federations, and the same people under another population’s name.",
        ),
    )


def _algorithms(dossier: Figures) -> Sequence[GuidelineItem]:
    topic = partial(_item, ALGORITHMS)
    kinds = sorted({(row["mechanism"], row["noise"]) for item in dossier["populations"] for row in item["releases"]})
    named = {"none": "without noise", "kept": "post-processing of what was released", "training": "noise in every step"}
    used = [
        f"{mechanism} ({named.get(noise, noise + ' noise')})" if noise != "none" else "exact sums without noise"
        for mechanism, noise in kinds
    ]
    by_rule: dict[str, list[str]] = {"gaussian": [], "strict": [], "standard": []}
    for item in dossier["populations"]:
        by_rule[item["adaptive"]].append(item["name"])
    standard, adaptive = by_rule["standard"], []
    if gaussian := by_rule["gaussian"]:
        adaptive.append(
            f"Composition for {listed(gaussian)} is by the Gaussian rule: squared ratios of sensitivity to noise add up, all "
            "steps of a sampled study counting as one that dominates them but for a stated share of delta. It is proven for "
            "studies chosen by what earlier ones released."
        )
    if strict := by_rule["strict"]:
        adaptive.append(
            f"Strict composition is set for {listed(strict)}: it is proven for studies chosen by what earlier ones released."
        )
    if standard:
        adaptive.append(
            f"Standard composition is set for {listed(standard)}: proven for such choice where no release samples "
            "records; with sampling it is the usual practice, not a proven filter."
        )
    return (
        topic(
            "Mechanism",
            "answered",
            ("ledger", "software"),
            f"Used so far: {listed(used)}." if used else "None was used so far.",
            "Noise is a discrete Gaussian on an integer grid. Where a study leaves vectors unrounded it is drawn "
            "around their real values, which is post-processing of the Gaussian mechanism.",
        ),
        topic(
            "Sensitivity and its proof",
            "answered",
            ("software",),
            "Each task states its bound, and the proof stands with its code (privacy/veilsum_privacy/tasks); "
            "clipping enforces it on every record for tasks that add up one vector a record. Tests hold every "
            "task that reads records against neighbouring data. No proof was checked by a machine.",
        ),
        topic(
            "Composition and accounting",
            "answered",
            ("ledger",),
            "The ledger holds each release as an event: sensitivity, variance, sampling rate, steps. Epsilon is "
            "computed from all events together, before a release is admitted, and anew at verification.",
            *adaptive,
            verified_words(dossier),
        ),
        topic("Sampling", "answered", ("ledger",), _sampled(dossier)),
        topic(
            "Hyperparameters",
            "partly answered",
            ("studies", "software"),
            "What a study uses is fixed in the text that its analyst signs before anything is computed, and does "
            "not depend on records. Trying several settings on real records costs a study each, and each is "
            "charged.",
            "What an analyst learnt outside this software before choosing is not known to it.",
        ),
        _audits(dossier),
    )


def _utility() -> Sequence[GuidelineItem]:
    topic = partial(_item, UTILITY)
    return (
        topic(
            "Accuracy of what is released",
            "not answered by this tool",
            (),
            "This dossier holds costs, not results. The plan of a study tells its analyst in advance the noise of "
            "each figure, and results state it with them.",
        ),
        topic(
            "Bias",
            "not answered by this tool",
            (),
            "Clipping shortens long records and so can bias figures; small groups drown in noise first. Bias in "
            "how data were gathered, or in how people use results, is not visible here.",
        ),
    )


def _deployment(dossier: Figures) -> Sequence[GuidelineItem]:
    topic = partial(_item, DEPLOYMENT)
    policy = dossier["policy"]
    noise = sorted({row["noise"] for item in dossier["populations"] for row in item["releases"]} - {"kept", "none"})
    made = {
        "distributed": "shares of noise from several sites, of which trusted ones are counted, over encrypted sums (the"
        " central model by secure computation)",
        "local": "the site’s own noise alone reaches the guarantee",
        "training": "the site’s own noise in every training step",
    }
    trust = [f"Used: {made[kind]}." for kind in noise]
    colluders = [
        f"{item['name']}: the guarantee holds against the coordinator and {_count(item['colluders'])} working with it; "
        f"against all others together it is epsilon {figures.cost(item['alone'])}."
        for item in dossier["populations"]
        if item["releases"]
    ]
    pinned, allowed = ([], []) if policy is None else (_peers(policy, dossier["site"]), _asked(policy))
    return (
        topic(
            "Trust model",
            "answered",
            ("ledger", "policy", "software"),
            *(trust or ["No noised release was made so far."]),
            *colluders,
            *pinned,
            "Where noise is added, nobody but the site sees its sum before that. The coordinator adds up ciphertexts that"
            " it cannot open.",
        ),
        topic(
            "Query model",
            "answered",
            ("ledger", "policy"),
            "Interactive: analysts sign studies, the site admits each by policy and budget. Every study’s "
            "releases are in part 4, whoever asked; those that a page has no room for, in its JSON twin.",
            *allowed,
        ),
        topic(
            "Floating point",
            "answered",
            ("software",),
            "Noise is drawn and added in integers by an exact sampler, and clipping onto the grid is checked in "
            "integers. Features, gradients and trained vectors are computed in floating point before that; the "
            "sensitivity of a task with one vector a site covers their rounding.",
        ),
        topic(
            "Randomness",
            "answered",
            ("software",),
            "The operating system’s cryptographic generator, for noise, samples, masks and keys; nothing "
            "installed can seed it. A machine restored behind its back from a snapshot while it runs could repeat "
            "noise.",
        ),
        topic(
            "Side channels",
            "partly answered",
            ("software",),
            "How long a site computes depends on how many records it has, and on how many a step sampled; the "
            "accounting does not cover that. Sizes of messages follow from the study. Refusals are decided before "
            "a record is read; a computation that fails on records contributes as a site without them would, and "
            "is charged.",
        ),
        topic(
            "Software and its review",
            "answered",
            ("software",),
            "The source is open, with tests of the noise’s distribution, of sensitivities on neighbouring data, "
            "and of planted faults. Nobody outside the project has audited it, and nothing in it is formally "
            "verified.",
        ),
    )


def _peers(policy: Figures, own: str) -> list[str]:
    pins = counted(len(set(policy["trusted"]) - {own}), "pinned peer")
    if policy.get("directory") is not None:  # the file of pins lies at the site, beside the policy
        left = counted(len(policy["not_trusted"]), "participant")
        pins = f"all participants in the federation’s directory that the site confirmed, but for {left} left out"
    noise, disclosures = listed(policy["noise"], "or"), listed(policy["disclosures"], "or")
    return [
        f"The policy counts the noise of {pins} and asks for {policy['min_cohort']} sites in a sum at least,"
        f" {policy['min_trusted']} of them trusted; it accepts {noise} noise and {disclosures} disclosure."
    ]


def _asked(policy: Figures) -> list[str]:
    methods, tasks = counted(len(policy["methods"]), "method"), counted(len(policy["tasks"]), "task")
    named = counted(len(policy["analysts"]), "named analyst")
    whose = "every analyst of the federation" if "*" in policy["analysts"] else named
    word = "by the policy" if policy["approval"] == "policy" else "by the operator, study by study"
    return [
        f"The policy accepts {methods} and {tasks}, of {whose}; approval is {word},"
        " as it is configured now; what the ledger recorded of it stands in part 4."
    ]


def _security(dossier: Figures) -> Sequence[GuidelineItem]:
    topic = partial(_item, SECURITY)
    refused = sum(len(item["refusals"]) for item in dossier["populations"]) + len(dossier["refusals"])
    unnoised = any(row["mechanism"] == "none" for item in dossier["populations"] for row in item["releases"])
    exact = ["Sums without noise were released: epsilon says nothing about them."] if unnoised else []
    return (
        topic(
            "Data security",
            "partly answered",
            ("software",),
            "In transit: TLS 1.3 with certificates on both sides, and contributions masked and encrypted besides. "
            "At rest: records stay where the site keeps them; this software writes no copy. Disks, backups and "
            "the machine are the site’s.",
        ),
        topic(
            "Access control",
            "partly answered",
            ("policy", "software"),
            "Who may ask is settled by certificates and the policy. Who has access to the records, the key and "
            "the state file on the site’s own machine is not visible here.",
        ),
        topic(
            "Enforcement of the budget, and its record",
            "answered",
            ("ledger",),
            "The site’s own participant reserves before anything leaves and refuses what would go beyond; "
            f"{counted(refused, 'request')} {'was' if refused == 1 else 'were'} refused so far. Every "
            "entry is chained and signed.",
            *exact,
            verified_words(dossier),
        ),
    )


def _collection() -> Sequence[GuidelineItem]:
    topic = partial(_item, COLLECTION)
    return (
        topic(
            "How the data were collected, kept and shared before",
            "not answered by this tool",
            (),
            "Differential privacy limits what releases tell. What was exposed when records were collected, copied "
            "or shared by other ways is outside it, and outside this software.",
        ),
        topic(
            "Retention of records",
            "not answered by this tool",
            (),
            "This software neither keeps nor deletes records. It keeps the ledger, in which keyed digests stand of what"
            " queries yielded, and for later rounds of a study the site’s own statistics and models as they were released"
            " or trained: with noise, unless the study has none.",
        ),
    )


def _spent(population: Figures) -> str:
    name = population["name"]
    if population["delta"] is None:
        made = len(population["releases"])
        unbounded = f" {counted(made, 'release')} {'was' if made == 1 else 'were'} charged all the same: nothing bounds them."
        return f"{name}: no budget was set.{unbounded if made else ''}"
    bound = "no bound" if population["epsilon"] is None else f"epsilon {figures.exact(population['epsilon'])}"
    spent, delta = figures.cost(population["spent"]), figures.small(population["delta"])
    return f"{name}: {bound} in all; spent {spent} (guarantee), at delta {delta}."


def _planned(dossier: Figures) -> list[str]:
    found = []
    for study in dossier["studies"].values():
        if terms := study.get("terms"):
            cost = "no guarantee" if terms["epsilon"] is None else f"epsilon {figures.cost(terms['epsilon'])}"
            found.append(f"The study {study['name']} declares {cost} at delta {figures.small(terms['delta'])}.")
    return found


def _sampled(dossier: Figures) -> str:
    rows = [row for item in dossier["populations"] for row in item["releases"] if row["sampling_rate"] < 1]
    if not rows:
        return "No release sampled records."
    rates = listed([figures.exact(rate) for rate in sorted({row["sampling_rate"] for row in rows})])
    return (
        f"{counted(len(rows), 'release')} sampled records at rates of {rates}: every unit by itself (Poisson), "
        "at a public rate, by a draw that is kept nowhere. The accounting is that of Poisson sampling."
    )


def audit_answers(dossier: Figures) -> tuple[str, ...]:
    """What audits at the site found, in words."""
    return _audits(dossier).answer


def _audits(dossier: Figures) -> GuidelineItem:
    topic, said, answered = partial(_item, ALGORITHMS, "Empirical audit"), list[str](), False
    for audit in dossier["audits"]:
        measured = sum(row["finding"] is not None for row in audit["rows"])
        faulty = sum(row["flagged"] for row in audit["rows"])
        answered = answered or measured > 0
        about = f"of the study {audit['name']}" if audit["study"] else "that the policy allowed"
        among = counted(len(audit["rows"]), "release")
        verdict = f"FOUND FAULTS in {faulty} of {among}" if audit["flagged"] else f"found no fault in {measured} of {among}"
        unknown = "" if measured == len(audit["rows"]) else f"; {len(audit['rows']) - measured} could not be measured"
        said.append(
            f"The audit of {figures.moment(audit['made'])} UTC, signed by this site, with canaries among made-up records:"
            f" {verdict} {about}{unknown} (part 8)."
        )
    proves = "An audit finds gross faults, with the power it states; it never proves privacy."
    if not said:
        none = "No audit on this site’s machine was taken in (`veilsum participant audit`)."
        return topic("not answered by this tool", (), none)
    return topic("answered" if answered else "not answered by this tool", ("audit",), *said, proves)


def verified_words(dossier: Figures) -> str:
    """Whether the ledger verifies, in words."""
    return "The ledger verifies (part 6)." if dossier["proof"]["valid"] else "The ledger DOES NOT VERIFY (part 6)."


def _units(units: Sequence[str]) -> str:
    words = {"record": "one record", "subject": "all records of one person", "site": "all records of this site"}
    return listed([words.get(unit, unit) for unit in units], "or") if units else "none yet, for nothing was asked for"


def _count(colluders: int | None) -> str:
    return "all other participants" if colluders is None else counted(colluders, "participant")
