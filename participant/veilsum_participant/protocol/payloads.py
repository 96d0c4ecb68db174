"""From a computed vector to a durable payload: add noise, mask, encrypt, sign the receipt, keep it all.

One payload for each context, ever: it is durable as it is sent, with its masked words and the secret of its consent, in one
row before the first byte leaves; after a crash the same bytes go out, or none. Its one-time key and errors are drawn here and
never stored: under the same polynomials, another key or other errors for the same words would tell of both.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from sqlalchemy import Connection

from veilsum_aggregation.arrays import Integers, Words
from veilsum_node.errors import Damage, Refusal, RefusalCode
from veilsum_participant.datasets import SNAPSHOT_PURPOSE, keyed_snapshot
from veilsum_participant.protocol.open_studies import OpenStudy
from veilsum_participant.protocol.patience import patiently
from veilsum_participant.site import Site
from veilsum_participant.store.attempts import AttemptRow, AttemptState, change_attempt, find_attempt
from veilsum_participant.store.kept import KeptVector, find_kept, keep_state, keep_vector
from veilsum_participant.store.studies import StudyState, change_study, find_study
from veilsum_participant.store.tables import promised
from veilsum_privacy.computation.declared import DeclaredPlan
from veilsum_privacy.ledger import Mechanism
from veilsum_privacy.ledger.receipts import Receipt, SignedReceipt, consent_commitment, consent_proof, sign_receipt
from veilsum_privacy.securesum.context import Assignment
from veilsum_privacy.securesum.data_masks import mask_values
from veilsum_privacy.securesum.graph import MaskGraph
from veilsum_privacy.securesum.key_shares import (
    MemberMasks,
    consent_of,
    mask_key,
    payload_digest,
    share_digest,
    share_to_bytes,
)
from veilsum_privacy.securesum.one_time_keys import begin_coefficients_digest, coefficients_to_bytes, encrypt_words
from veilsum_privacy.securesum.packed import pack_numbers, unpack_numbers
from veilsum_privacy.securesum.roster import Roster
from veilsum_privacy.securesum.short_keys import draw_key
from veilsum_privacy.securesum.streams import SECRET_BYTES
from veilsum_privacy.securesum.sum_plan import OneTimePlan


@dataclass(frozen=True)
class Payload:
    """A durable contribution, ready to upload.

    Attributes:
        round, attempt: what it answers.
        pieces: of it as it travels, in order: its key share, then coefficients (:attr:`OneTimePlan.pieces`).
        receipt: signed; goes last.
        resumed: whether some of it may have been uploaded before.
    """

    round: int
    attempt: int
    pieces: Sequence[memoryview] = field(repr=False)
    receipt: SignedReceipt
    resumed: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Assigned:
    """An assignment that holds, and what follows from it: roster, who shares masks, plan and context digest."""

    assignment: Assignment
    roster: Roster
    graph: MaskGraph
    plan: DeclaredPlan
    context: bytes


@dataclass(frozen=True)
class Computed:
    """A vector for the sum.

    Attributes:
        values: in grid units.
        noised: whether its noise is in it already.
        state: what was trained for the next round, encoded.
        digest: of the records that it was computed from, where they came from a query; empty if they could not be read to
            their end.
    """

    values: Integers = field(repr=False)
    noised: bool = field(repr=False)
    state: bytes = field(default=b"", repr=False)
    digest: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Drawn:
    """What was drawn and made for one context, and is drawn once.

    Attributes:
        values: the vector with its noise, in grid units.
        words: the masked words, packed.
        payload: as it travels.
        digest: of the payload, as its receipt has it.
        consent: the secret of the self streams.
    """

    values: Integers = field(repr=False)
    words: bytes = field(repr=False)
    payload: bytes = field(repr=False)
    digest: bytes
    consent: bytes = field(repr=False)


def seal_payload(site: Site, opened: OpenStudy, checked: Assigned, computed: Computed) -> Payload:
    """Mask, encrypt and make durable what was computed.

    Raises:
        Refusal: the attempt was given up, or its time ran out, while it was computed.
    """
    assignment, plan, values = checked.assignment, checked.plan, computed.values
    if not computed.noised:
        values = plan.noised(values, opened.study.participants.index(site.name), site.noise_random)
    drawn = _draw(site, opened, checked, values)
    # what was drawn for this context is drawn once: a disk that takes nothing for the moment is waited for with it in hand
    signed = patiently(lambda: _keep(site, opened, checked, computed, drawn), site.patience, threading.Event())
    return Payload(assignment.round, assignment.attempt, cut(drawn.payload, plan.encoding), signed)


def _draw(site: Site, opened: OpenStudy, checked: Assigned, values: Integers) -> Drawn:
    """Mask and encrypt a noised vector, under a consent and a one-time key that are drawn here."""
    encoding, context = checked.plan.encoding, checked.context
    ring, cohort = encoding.ring, encoding.cohort
    sharing = sharing_masks(checked.graph, checked.assignment, site.name)
    consent = consent_of(site.random.bytes(SECRET_BYTES), context)
    masks = MemberMasks(context, site.name, sharing, opened.seeds, consent)
    words, key = mask_values(values, encoding, masks), draw_key(ring, site.random)
    share = share_to_bytes(mask_key(key, ring, cohort, masks), ring, cohort)
    payload, coefficients = io.BytesIO(), begin_coefficients_digest(len(words))
    payload.write(share)
    for batch in encrypt_words(words, key, context, ring, site.random):
        part = coefficients_to_bytes(batch, ring)
        coefficients.update(part)
        payload.write(part)
    digest = payload_digest(share_digest(share), coefficients.digest())
    return Drawn(values, pack_words(words, encoding), payload.getvalue(), digest, consent)


def _keep(site: Site, opened: OpenStudy, checked: Assigned, computed: Computed, drawn: Drawn) -> SignedReceipt:
    """Make the payload durable with its receipt and all that later rounds need, in one transaction.

    Raises:
        Refusal: the attempt was given up, or its time ran out, while it was computed.
    """
    assignment = checked.assignment
    with site.database.transaction() as connection:
        row = find_study(connection, opened.digest)
        attempt = find_attempt(connection, opened.digest, assignment.attempt)
        if row is None or row.status != StudyState.READY or attempt is None or attempt.state != AttemptState.RESERVED:
            raise Refusal(RefusalCode.ROUND, "The attempt was given up while it was computed.")
        if site.steady() >= attempt.deadline:
            raise Refusal(RefusalCode.ROUND, "The attempt's deadline passed while it was computed.")
        _keep_for_later(connection, site, opened, checked, computed, drawn.values)
        read = None  # the ledger hears of it with the charge: nothing that depends on records stands in it before
        if computed.digest is not None:
            read = keyed_snapshot(computed.digest, site.credentials.signing_key.secret(SNAPSHOT_PURPOSE), checked.context)
        number = row.receipts + 1
        receipt = _receipt(site, opened, checked, drawn, number, site.ledger.head(connection))
        signed = sign_receipt(receipt, site.credentials.signing_key)
        change_study(connection, opened.digest, receipts=number)
        change_attempt(
            connection,
            opened.digest,
            assignment.attempt,
            state=AttemptState.PAYLOAD,
            consent=drawn.consent,
            payload=drawn.payload,
            words=drawn.words,
            receipt=signed.body,
            receipt_signature=signed.signature,
            snapshot=read,
        )
    return signed


def _keep_for_later(
    connection: Connection, site: Site, opened: OpenStudy, checked: Assigned, computed: Computed, values: Integers
) -> None:
    """Store the noised vector of a task that is kept, and what was trained."""
    assignment, task = checked.assignment, checked.plan.task
    if task.declaration.keep and find_kept(connection, opened.digest, task.label) is None:
        part = task.kept_part(values, opened.study.participants.index(site.name))
        kept = KeptVector(part, values, task.kept_origin(assignment.broadcast))
        keep_vector(connection, opened.digest, task.label, kept)
    if computed.state:
        keep_state(connection, opened.digest, assignment.attempt, task.label, computed.state)


def _receipt(site: Site, opened: OpenStudy, checked: Assigned, drawn: Drawn, number: int, head: bytes) -> Receipt:
    assignment, plan = checked.assignment, checked.plan
    return Receipt(
        study=opened.digest,
        participant=site.name,
        round=assignment.round,
        attempt=assignment.attempt,
        context=checked.context,
        payload=drawn.digest,
        number=number,
        head=head,
        dataset=opened.study.dataset,
        mechanism=Mechanism.of(plan.declaration, plan.noise),
        unit=opened.study.privacy.unit,
        cohort_size=len(assignment.cohort),
        consent=consent_commitment(checked.context, site.name, consent_proof(drawn.consent)),
    )


def resume_payload(row: AttemptRow, checked: Assigned) -> Payload:
    """The payload of an attempt that was assigned before, as it was kept.

    Raises:
        Refusal: it was assigned under another context, or has none any more: it is over, or was answered for.
    """
    if row.context != checked.context or row.round != checked.assignment.round:
        raise Refusal(RefusalCode.CONTEXT, "The attempt was assigned before under another context.")
    if row.state != AttemptState.PAYLOAD or row.answered is not None:
        raise Refusal(RefusalCode.ROUND, f"The attempt cannot be uploaded; it is {row.state}.")
    pieces = cut(promised(row.payload), checked.plan.encoding)
    return Payload(row.round, row.attempt, pieces, row.signed_receipt, resumed=True)


def cut(payload: bytes, plan: OneTimePlan) -> list[memoryview]:
    """A payload in the pieces in which it travels; none is copied.

    Raises:
        Damage: it is not as long as its plan says.
    """
    if len(payload) != plan.payload_bytes:
        raise Damage("A stored payload is not as long as its round's plan says.", "Restore a backup.")
    ends = list(accumulate(map(plan.piece_bytes, range(plan.pieces))))
    return [memoryview(payload)[start:end] for start, end in pairwise([0, *ends])]


def pack_words(words: Words, plan: OneTimePlan) -> bytes:
    """Masked words as the store keeps them."""
    return pack_numbers(words, plan.ring.plain_modulus.bit_length())


def unpack_words(data: bytes, plan: OneTimePlan) -> Words:
    """The words of :func:`pack_words`, (plan.words,)."""
    return unpack_numbers(data, plan.words, plan.ring.plain_modulus.bit_length(), "stored payload")


def sharing_masks(graph: MaskGraph, assignment: Assignment, own: str) -> list[str]:
    """This member and all members of the cohort that it shares masks with, in roster order."""
    others = graph.neighbours(own)
    return [name for name in assignment.names if name == own or name in others]
