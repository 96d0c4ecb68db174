"""A sum as it was added up: its bytes, and that it opens to what its members consented to."""

from collections.abc import Iterator

from veilsum_aggregation.arrays import Integers, Words
from veilsum_node.errors import HostileInput
from veilsum_node.identity import Identity
from veilsum_privacy.results.sum_evidence import Evidence, Held, answered
from veilsum_privacy.securesum.check_words import verify_check_words
from veilsum_privacy.securesum.contributions import Contribution
from veilsum_privacy.securesum.key_shares import share_to_bytes
from veilsum_privacy.securesum.opening import open_words, unmask_values
from veilsum_privacy.securesum.packed import packed_blocks, unpack_numbers
from veilsum_privacy.securesum.ring import RingParameters
from veilsum_privacy.securesum.sum_plan import OneTimePlan


def total_to_bytes(total: Contribution, plan: OneTimePlan) -> bytes:
    """A contribution, or a sum of them, as it travels: key share, then coefficients; of ``plan.payload_bytes``."""
    return b"".join(total_blocks(total, plan))


def total_blocks(total: Contribution, plan: OneTimePlan) -> Iterator[bytes]:
    """The bytes of :func:`total_to_bytes` in blocks of less than a mebibyte, of which one at a time is made."""
    yield share_to_bytes(total.share, plan.ring, plan.cohort)
    yield from packed_blocks(total.coefficients, plan.ring.coefficient_bits)


def total_from_bytes(data: bytes | memoryview, plan: OneTimePlan) -> Contribution:
    """The contribution of :func:`total_to_bytes`.

    Raises:
        HostileInput: of another size, or a number is out of range.
    """
    cut = plan.ring.share_size(plan.cohort)
    if len(data) != plan.payload_bytes:
        raise HostileInput(f"A contribution has {len(data)} bytes instead of {plan.payload_bytes}.")
    share = share_from_bytes(data[:cut], plan.ring, plan.cohort)
    return Contribution(share, coefficients_from_bytes(data[cut:], plan.words, plan.ring))


def share_from_bytes(data: bytes | memoryview, ring: RingParameters, members: int) -> Words:
    """The share of :func:`.key_shares.share_to_bytes`, (N + 1,).

    Raises:
        HostileInput: another length, or bits behind the last coefficient.
    """
    return unpack_numbers(data, ring.degree + 1, ring.share_bits(members), "key share")


def coefficients_from_bytes(data: bytes | memoryview, count: int, ring: RingParameters) -> Words:
    """The (count,) coefficients of :func:`.one_time_keys.coefficients_to_bytes`.

    Raises:
        HostileInput: another length, or one is not below q.
    """
    found = unpack_numbers(data, count, ring.coefficient_bits, "polynomial")
    if (found >= ring.prime).any():
        raise HostileInput("A coefficient is not below the prime of the study's parameters.")
    return found


def verify_evidence(held: Held[Evidence], plan: OneTimePlan, coordinator: Identity) -> Integers:
    """Open the sum again and check everything that speaks for it, as :func:`.verify_opened` does.

    Raises:
        HostileInput: the first thing that does not hold.
    """
    evidence, context = held.shown, held.context
    total = total_from_bytes(evidence.total, plan)
    said = answered(held, plan, coordinator, total)
    words = open_words(total, plan, context, evidence.consents, total.coefficients)
    answers = [item.words for item in said]
    verify_check_words(words, plan.ring.plain_modulus, context, said[0].challenge, answers, evidence.consents)
    return unmask_values(words, plan, context, evidence.consents)
