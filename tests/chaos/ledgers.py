"""Who paid for what, read from the parties' files by SQL alone, and the privacy that was spent, by a closed form.

The losses of Gaussian mechanisms without sampling add up to that of one Gaussian mechanism, mu^2 = sum of D^2 / S^2, whose
delta at an epsilon is known exactly (Balle and Wang 2018): the truth, which no accountant of the product may go below.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from scipy.optimize import brentq
from scipy.stats import norm

from chaos.federation import DELTA, Federation
from chaos.reading import Row

PAID = ("charge", "recovery")


@dataclass(frozen=True)
class Account:
    """A site's ledger in figures.

    Attributes:
        charges: of all studies.
        lost: charges whose sum was never released.
        refused: refusals for want of budget.
        epsilon: spent, exactly; infinite where anything was released without noise.
    """

    charges: int
    lost: int
    refused: int
    epsilon: float


def gaussian_epsilon(squares: float, delta: float) -> float:
    """Epsilon of Gaussian mechanisms whose squared ratios of sensitivity to noise add up to ``squares``."""
    if squares == 0:
        return 0.0
    mu = math.sqrt(squares)

    def excess(epsilon: float) -> float:
        tail = norm.logcdf(-mu / 2 - epsilon / mu) + epsilon
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(tail) - delta)

    return 0.0 if excess(0.0) <= 0 else float(brentq(excess, 0.0, 50 + squares * 10))


def squares_of(charges: Iterable[Row]) -> float:
    """mu^2 of charges; infinite if one is for a sum without noise.

    Raises:
        ValueError: one is for a sampled release, which has no closed form.
    """
    found = 0.0
    for charge in charges:
        event: Mapping[str, Any] = json.loads(charge["event"])
        if event["noise"] == "kept":
            continue
        if event["noise"] == "none":
            return math.inf
        if float.fromhex(event["sampling_rate"]) != 1:
            raise ValueError("a sampled release")
        found += event["steps"] * int(event["sensitivity"]) ** 2 / int(event["variance"][0])
    return found


def check_ledgers(federation: Federation, studies: Mapping[bytes, str]) -> tuple[dict[str, Account], list[str]]:
    """Hold every site's ledger and store against the coordinator's releases.

    Args:
        studies: phase in which each study ended, by digest.
    """
    query = "SELECT study, round, attempt, cohort FROM coordinator_release"
    released = {
        (bytes(row["study"]).hex(), int(row["round"])): (int(row["attempt"]), tuple(json.loads(row["cohort"])))
        for row in federation.at_coordinator(query)
    }
    accounts, faults = {}, list[str]()
    contexts: dict[tuple[str, int], set[str]] = {}
    for name in federation.plan.names:
        entries = federation.at_site(name, "SELECT * FROM ledger ORDER BY seq")
        charges = [entry for entry in entries if entry["kind"] in PAID]
        for charge in charges:
            contexts.setdefault((charge["study"], charge["round"]), set()).add(charge["context"])
        lost = [charge for charge in charges if (charge["study"], charge["round"]) not in released]
        faults += [f"{name}: {fault}" for fault in _check_entries(name, entries, charges, released)]
        faults += [f"{name}: {fault}" for fault in _check_lost(lost, studies)]
        faults += [f"{name}: {fault}" for fault in _check_store(federation, name, charges)]
        squares = squares_of(charges)
        spent = math.inf if math.isinf(squares) else gaussian_epsilon(squares, DELTA)
        if federation.plan.budget is not None and spent > federation.plan.budget:
            faults.append(f"{name} spent epsilon {spent:.4f} of {federation.plan.budget}")
        refused = sum(entry["kind"] == "refusal" and "budget-exceeded" in entry["detail"] for entry in entries)
        accounts[name] = Account(len(charges), len(lost), refused, spent)
    faults += [
        f"round {number} of {study[:12]} was paid for as two sums" for (study, number), own in contexts.items() if len(own) > 1
    ]
    faults += _check_coordinator(federation)
    return accounts, faults


def _check_entries(
    name: str, entries: list[Row], charges: list[Row], released: Mapping[tuple[str, int], tuple[int, tuple[str, ...]]]
) -> Iterable[str]:
    twice = [context for context, count in Counter(charge["context"] for charge in charges).items() if count > 1]
    yield from (f"context {context[:12]} is charged twice" for context in twice)
    paid = Counter((charge["study"], charge["round"]) for charge in charges)
    yield from (
        f"round {number} of {study[:12]} is charged {count} times" for (study, number), count in paid.items() if count > 1
    )
    attempts = {(charge["study"], charge["round"]): charge["attempt"] for charge in charges}
    seen = Counter((entry["study"], entry["round"]) for entry in entries if entry["kind"] == "release-seen")
    for place, (attempt, cohort) in released.items():
        what = f"round {place[1]} of {place[0][:12]}"
        if name in cohort and attempts.get(place) != attempt:
            yield f"{what} is released and not paid for"
        if name not in cohort and place in attempts:
            yield f"{what} is paid for without a part in it"
        if seen[place] != (name in cohort):
            yield f"the release of {what} was seen {seen[place]} times"
    ended = {entry["context"] for entry in entries if entry["kind"] in (*PAID, "free")}
    opened = {entry["context"] for entry in entries if entry["kind"] == "reserve"}
    yield from (f"the reservation {context[:12]} is still open" for context in opened - ended)
    for before, entry in pairwise(entries):
        if entry["previous"] != before["hash"] or entry["seq"] != before["seq"] + 1:
            yield f"the chain is broken at entry {entry['seq']}"


def _check_lost(lost: Iterable[Row], studies: Mapping[bytes, str]) -> Iterable[str]:
    """A charge without a release: once in a study at most, and only in one that did not finish."""
    for study, count in Counter(charge["study"] for charge in lost).items():
        phase = studies.get(bytes.fromhex(study), "unknown")
        if phase == "finished" or count > 1:
            yield f"{count} charges of the {phase} study {study[:12]} are without a release"


def _check_store(federation: Federation, name: str, charges: list[Row]) -> Iterable[str]:
    """Attempts agree with charges; nothing secret is left of a study that is over."""
    attempts = federation.at_site(name, "SELECT study, round, attempt, state, payload, words, shown FROM participant_attempt")
    paid = {
        (bytes(row["study"]).hex(), row["attempt"])
        for row in attempts
        if row["state"] in ("consented", "released", "recovered")
    }
    if paid != {(charge["study"], charge["attempt"]) for charge in charges}:
        yield "attempts and charges differ"
    for row in attempts:
        where = f"attempt {row['attempt']} of {bytes(row['study']).hex()[:12]}"
        if row["state"] in ("reserved", "payload"):
            yield f"{where} is still open"
        if any(row[name] is not None for name in ("payload", "words", "shown")):
            yield f"{where} ({row['state']}) still has its payload, its words or what it was shown"
    for row in federation.at_site(name, "SELECT digest, status, box_key, shares, seeds FROM participant_study"):
        if any(row[secret] for secret in ("box_key", "shares", "seeds")):
            yield f"study {bytes(row['digest']).hex()[:12]} ({row['status']}) still has its keys"


def _check_coordinator(federation: Federation) -> Iterable[str]:
    for query in ("SELECT study FROM coordinator_member", "SELECT study FROM coordinator_round"):
        if rows := federation.at_coordinator(query):
            yield f"{len(rows)} rows of ended studies are left: {query}"
    unreleased = (
        "SELECT s.study FROM coordinator_sum s LEFT JOIN coordinator_release r ON s.study = r.study AND s.round = r.round"
        " WHERE r.study IS NULL AND s.size IS NOT NULL"
    )
    if rows := federation.at_coordinator(unreleased):
        yield f"{len(rows)} sums that were never released are left"
