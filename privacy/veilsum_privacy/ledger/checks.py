"""What is checked of receipts and countersignatures before a ledger keeps them.

Nothing here reads or writes a database. Certificates must be valid at the time that the entry will bear; those of the own
keys, which signed what is recovered, may have expired since.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography import x509

from veilsum_node.errors import HostileInput
from veilsum_node.identity import Identity, Label, Role, verify, verify_certificate
from veilsum_node.identity.certificate import issued
from veilsum_privacy.ledger.entries import Reservation
from veilsum_privacy.ledger.receipts import (
    Receipt,
    SignedReceipt,
    Witness,
    parse_countersignature,
    verify_countersignature,
    verify_receipt,
)


@dataclass(frozen=True)
class CheckedReceipt:
    """A receipt whose signature was verified."""

    receipt: Receipt
    signed: SignedReceipt
    signer: Identity


def check_cohort(
    receipts: Sequence[SignedReceipt], certificates: Mapping[str, bytes], authority: x509.Certificate, at: int
) -> list[CheckedReceipt]:
    """Verify an attempt's receipts: each signed by a participant of the federation, all about one and the same sum.

    Args:
        receipts: in the cohort's order.
        certificates: by name, DER or PEM.
        authority: the federation's.
        at: the time at which certificates must be valid, Unix seconds.

    Raises:
        HostileInput: names the participant whose receipt is wrong.
    """
    if not receipts:
        raise HostileInput("There are no receipts.")
    parsed = [signed.read() for signed in receipts]
    first, release = parsed[0], _release(parsed[0])
    checked: list[CheckedReceipt] = []
    for receipt, signed in zip(parsed, receipts, strict=True):
        name = receipt.participant
        signer = _signer(name, certificates, authority, at)
        try:
            verify(signer.public_key, Label.RECEIPT, signed.body, signed.signature)
        except HostileInput as error:
            raise HostileInput(f"The receipt of {name} is not signed by that member.") from error
        if (receipt.study, receipt.context) != (first.study, first.context):
            raise HostileInput(f"The receipt of {name} is for another context: not everyone was asked for the same sum.")
        if signer.name != name or _release(receipt) != release:
            raise HostileInput(f"The receipt of {name} describes a different release than the others.")
        checked.append(CheckedReceipt(receipt, signed, signer))
    names = [item.receipt.participant for item in checked]
    if len(set(names)) != len(names) or len(names) != first.cohort_size:
        raise HostileInput("There is not exactly one receipt for each member of the cohort.")
    return checked


def own_receipt(checked: Sequence[CheckedReceipt], name: str, release: Reservation) -> Receipt:
    """A member's own receipt among the cohort's, for the release that it reserved.

    Raises:
        HostileInput: it is not there, or for another release.
    """
    own = [item.receipt for item in checked if item.receipt.participant == name]
    if len(own) != 1 or own[0].reservation(release.population) != release:
        raise HostileInput("The receipts are not for the release that this site reserved.")
    return own[0]


def check_countersignature(
    witness: Witness, checked: Sequence[CheckedReceipt], authority: x509.Certificate, at: int
) -> Identity:
    """Verify that a coordinator of the federation signed for exactly these receipts. Returns who it is.

    Raises:
        HostileInput: it did not.
    """
    name = parse_countersignature(witness.countersigned.body).coordinator
    if name not in witness.certificates:
        raise HostileInput(f"There is no certificate of the coordinator {name}.")
    signer = verify_certificate(witness.certificates[name], authority, at, Role.COORDINATOR)
    receipt = checked[0].receipt
    signed = verify_countersignature(witness.countersigned, signer, receipt.study, receipt.context, witness.receipts)
    if (signed.round, signed.attempt) != (receipt.round, receipt.attempt):
        raise HostileInput("A countersignature is for another round or attempt than the receipts.")
    return signer


def find_signer(receipt: SignedReceipt, name: str, certificates: Iterable[bytes], authority: x509.Certificate) -> Identity:
    """Find which of a participant's keys signed its receipt.

    Raises:
        HostileInput: none of them did.
    """
    parsed = receipt.read()
    for certificate in certificates:
        try:
            signer = issued(certificate, authority, Role.PARTICIPANT)
            verify_receipt(receipt, signer, parsed.study, parsed.context)
        except HostileInput:
            continue
        if signer.name == name:
            return signer
    raise HostileInput("The receipt was not signed by this site.", "Ask the coordinator for this site's own receipts.")


def _release(receipt: Receipt) -> tuple[Any, ...]:
    about = (receipt.round, receipt.attempt, receipt.dataset, receipt.mechanism, receipt.unit, receipt.cohort_size)
    return *about, receipt.version


def _signer(name: str, certificates: Mapping[str, bytes], authority: x509.Certificate, at: int) -> Identity:
    try:
        return verify_certificate(certificates[name], authority, at, Role.PARTICIPANT)
    except KeyError:
        raise HostileInput(f"There is no certificate of {name}.") from None
    except HostileInput as error:
        raise HostileInput(f"The certificate of {name} does not hold: {error.message}", error.advice) from error
