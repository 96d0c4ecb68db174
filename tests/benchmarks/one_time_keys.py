"""The lock of protocol 6 beside that of protocol 5 in one process: one-time keys against BFV under a key that was dealt.

CPU microseconds a slot, that is a word below the plain modulus, of one core; noise, lanes and data masks are the same in both
and left out. Protocol 5: tag and encrypt; add; decrypt and check tags, which two members do. Protocol 6: key, key share and
encryption; check words; add; open; hold the opened words to the check words. Every opened sum is compared with the exact one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from benchmarks.sums import timed
from support.one_time import Members, make_members
from support.securesum import Cohort, make_cohort
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_privacy.results.sum_evidence import total_from_bytes
from veilsum_privacy.securesum.bfv import Adder, SecretKey
from veilsum_privacy.securesum.check_words import challenge, check_words, verify_check_words
from veilsum_privacy.securesum.contribution import decrypt_sum, encrypt_contribution, open_sum
from veilsum_privacy.securesum.data_masks import unmask_values
from veilsum_privacy.securesum.key_shares import share_to_bytes
from veilsum_privacy.securesum.one_time_keys import coefficients_to_bytes, draw_key, encrypt_words
from veilsum_privacy.securesum.opening import Total, open_words
from veilsum_privacy.securesum.parameters import BFV_4096, BFV_8192, TAGS, BfvParameters, plan_encoding
from veilsum_privacy.securesum.ring import RING_2048, RING_4096
from veilsum_privacy.securesum.tags import TagKey

SIZES = (62, 10_000, 1_000_000)
COHORTS = (4, 16)
CONTEXT = bytes(range(32))
Result = TypeVar("Result")


def measure(*, quick: bool = False) -> list[dict[str, Any]]:
    """Figures of each size and cohort; ``quick``: up to 10,000 values."""
    return [_measure(size, members) for size in (SIZES[:2] if quick else SIZES) for members in COHORTS]


def _measure(size: int, count: int) -> dict[str, Any]:
    ring, former = (RING_4096, BFV_8192) if size > 10_000 else (RING_2048, BFV_4096)
    bound = ((1 << (22 if size > 10_000 else 18)) // count - 1) // 2
    repeats = 15 if size > 10_000 else 30
    vectors = [np.random.default_rng(place).integers(-bound, bound + 1, size) for place in range(count)]
    exact = np.sum(vectors, axis=0)
    return {
        "values": size,
        "participants": count,
        **_protocol_6(make_members(count, size, bound, ring), vectors, exact, repeats),
        **_protocol_5(make_cohort(count), size, bound, former, vectors, exact, repeats),
    }


def _protocol_6(members: Members, vectors: Sequence[Any], exact: Any, repeats: int) -> dict[str, Any]:
    plan, context, ring = members.plan, members.context, members.ring
    modulus, total, words, sizes = ring.plain_modulus, Total(plan), [], []
    figures: dict[str, float] = {}

    def per_slot(name: str, work: Callable[[], Result], times: int = 1) -> Result:
        seconds, result = timed(work, times)
        figures[name] = seconds * 1e6 / plan.words
        return result

    for place, (name, values) in enumerate(zip(members.names, vectors, strict=True)):
        masked = members.mask(name, values)

        def lock(name: str = name, masked: Any = masked) -> bytes:
            key = draw_key(ring, SYSTEM_RANDOM)
            share = share_to_bytes(members.share(name, key), ring, plan.cohort)
            parts = encrypt_words(masked, key, context, ring, SYSTEM_RANDOM)
            return b"".join([share, *(coefficients_to_bytes(part, ring) for part in parts)])

        data = per_slot("site", lock, repeats if place == 1 else 1) if place < 2 else lock()
        start = time.process_time()
        total.add(total_from_bytes(data, plan))
        figures["add"] = (time.process_time() - start) * 1e6 / plan.words
        words.append(masked)
        sizes.append(len(data))
    fixed = total.contribution.digest(plan, context)
    rho, answers = challenge(context, [b"receipt"] * plan.cohort, fixed), []
    for name, masked in zip(members.names, words, strict=True):

        def answer(name: str = name, masked: Any = masked) -> tuple[int, ...]:
            consent = members.consent(name)
            return check_words(masked, modulus, context, rho, name, members.names, members.seeds(name), consent)

        answers.append(per_slot("check", answer, repeats if name == members.names[1] else 1))
    consents = members.consents
    opened = per_slot("open", lambda: open_words(total.contribution, plan, context, consents), repeats)
    per_slot("verify", lambda: verify_check_words(opened, modulus, context, rho, answers, consents), repeats)
    np.testing.assert_array_equal(unmask_values(opened, plan, context, consents), exact)
    return {"slots": plan.words, "lanes": plan.lanes, "bytes": sizes[0], **figures}


def _protocol_5(
    cohort: Cohort, size: int, bound: int, parameters: BfvParameters, vectors: Sequence[Any], exact: Any, repeats: int
) -> dict[str, Any]:
    plan = plan_encoding(size, bound, Fraction(0), len(cohort.names), parameters)
    key, tag_key = SecretKey.generate(parameters), TagKey(bytes(32))
    totals = [Adder(parameters, plan.words(index) + TAGS, plan.cohort) for index in range(plan.ciphertexts)]
    slots = sum(plan.words(index) for index in range(plan.ciphertexts))
    site = add = 0.0
    payload = 0
    for place, (name, values) in enumerate(zip(cohort.names, vectors, strict=True)):
        words = cohort.words(name, values, plan, CONTEXT)
        seconds, ciphertexts = timed(
            lambda words=words, name=name: list(encrypt_contribution(words, plan, CONTEXT, name, key, tag_key)),  # type: ignore[misc]
            repeats if place == 1 else 1,
        )
        site = seconds if place < 2 else site
        start = time.process_time()
        for index, ciphertext in enumerate(ciphertexts):
            totals[index].add(ciphertext)
        add, payload = time.process_time() - start, sum(map(len, ciphertexts))
    sums = [total.to_bytes() for total in totals]
    seconds, words = timed(lambda: decrypt_sum(sums, plan, CONTEXT, cohort.names, key, tag_key), repeats)
    np.testing.assert_array_equal(open_sum(words, plan, cohort.consents(CONTEXT)), exact)
    scale = 1e6 / slots
    return {
        "former_slots": slots,
        "former_bytes": payload,
        "former_site": site * scale,
        "former_add": add * scale,
        "former_open": seconds * scale,
    }


ROWS: tuple[tuple[str, Callable[[dict[str, Any]], float]], ...] = (
    ("a site: key, share, encryption", lambda r: r["site"]),
    ("  protocol 5: tags, encryption", lambda r: r["former_site"]),
    ("a site: check words", lambda r: r["check"]),
    ("add one contribution", lambda r: r["add"]),
    ("  protocol 5", lambda r: r["former_add"]),
    ("open", lambda r: r["open"]),
    ("hold to the check words", lambda r: r["verify"]),
    ("  protocol 5: decrypt, twice", lambda r: 2 * r["former_open"]),
    ("everybody, a value", lambda r: _all(r) * r["slots"] / r["values"]),
    ("  protocol 5", lambda r: _former(r) * r["former_slots"] / r["values"]),
    ("  protocol 5 / protocol 6", lambda r: _former(r) * r["former_slots"] / _all(r) / r["slots"]),
    ("bytes up, a value", lambda r: r["bytes"] / r["values"]),
    ("  protocol 5", lambda r: r["former_bytes"] / r["values"]),
)


def _all(result: dict[str, Any]) -> float:
    return float(
        result["participants"] * (result["site"] + result["check"] + result["add"]) + result["open"] + result["verify"]
    )


def _former(result: dict[str, Any]) -> float:
    return float(result["participants"] * (result["former_site"] + result["former_add"]) + 2 * result["former_open"])


def table(results: Sequence[dict[str, Any]]) -> str:
    """As a Markdown table, one column for each size and cohort."""
    heads = [f"{result['values']:,} x {result['participants']}" for result in results]
    lines = [["CPU microseconds a slot", *heads], ["---", *("---:" for _ in heads)]]
    lines += [[name, *(f"{figure(result):.3f}" for result in results)] for name, figure in ROWS]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("| " + " | ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)) + " |" for line in lines)
