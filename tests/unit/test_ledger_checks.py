"""What is checked of a cohort's receipts and of the coordinator's word before a ledger keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from support.ledgers import COORDINATOR, OTHER_STUDY, START, STUDY, any_receipt, credentials_of, make_reservation
from veilsum_node.errors import HostileInput
from veilsum_node.identity import Credentials, Role
from veilsum_privacy.ledger.checks import (
    CheckedReceipt,
    check_cohort,
    check_countersignature,
    find_signer,
    own_receipt,
)
from veilsum_privacy.ledger.countersigning import countersign
from veilsum_privacy.ledger.receipts import Countersignature, Receipt, SignedReceipt, Witness, receipts_digest, sign_receipt

NAMES = ("north", "south", "east", "west")
SITES = {name: credentials_of(name) for name in NAMES}
CENTRE = credentials_of(COORDINATOR, role=Role.COORDINATOR)
AUTHORITY = CENTRE.authority
RELEASE = make_reservation()
CERTIFICATES = {each.identity.name: each.identity.certificate for each in (*SITES.values(), CENTRE)}


def signed(name: str, signer: Credentials | None = None, **changes: Any) -> SignedReceipt:
    values = {"context": RELEASE.context} | changes
    return sign_receipt(any_receipt(participant=name, **values), (signer or SITES[name]).signing_key)


def cohort(**changes: SignedReceipt) -> list[SignedReceipt]:
    return [changes.get(name) or signed(name) for name in NAMES]


def check(receipts: list[SignedReceipt], certificates: Mapping[str, bytes] = CERTIFICATES) -> list[CheckedReceipt]:
    return check_cohort(receipts, certificates, AUTHORITY, START)


def test_a_cohort_signs_for_one_sum() -> None:
    receipts = cohort()
    checked = check(receipts)
    assert [item.signed for item in checked] == receipts
    assert [item.receipt for item in checked] == [any_receipt(participant=name, context=RELEASE.context) for name in NAMES]
    assert [item.signer for item in checked] == [SITES[name].identity for name in NAMES]
    alone = replace(RELEASE.mechanism, noise=replace(RELEASE.mechanism.noise, honest=1))
    assert len(check([signed("north", cohort_size=1, mechanism=alone)])) == 1


@pytest.mark.parametrize(
    ("receipts", "fault"),
    [
        ([], "There are no receipts"),
        (cohort()[:3], "not exactly one receipt for each member"),
        ([*cohort()[:3], signed("north")], "not exactly one receipt for each member"),
        ([*cohort(), signed("north")], "not exactly one receipt for each member"),
        (cohort(east=signed("east", SITES["south"])), "The receipt of east is not signed by that member"),
        (cohort(east=replace(signed("east"), signature=b"")), "The receipt of east is not signed by that member"),
        (cohort(south=signed("south", study=OTHER_STUDY)), "The receipt of south is for another context"),
        (cohort(south=signed("south", context=bytes(32))), "The receipt of south is for another context"),
        (cohort(north=signed("north", context=bytes(32))), "The receipt of south is for another context"),
        (cohort(south=signed("south", round=9)), "The receipt of south describes a different release"),
        (cohort(south=signed("south", attempt=9)), "The receipt of south describes a different release"),
        (cohort(south=signed("south", dataset="x")), "The receipt of south describes a different release"),
        (cohort(south=signed("south", unit="subject")), "The receipt of south describes a different release"),
        (cohort(south=signed("south", cohort_size=5)), "The receipt of south describes a different release"),
        (
            cohort(south=signed("south", mechanism=replace(RELEASE.mechanism, steps=2))),
            "The receipt of south describes a different release",
        ),
        (cohort(north=signed("north", dataset="x")), "The receipt of south describes a different release"),
    ],
)
def test_what_is_no_cohort_is_refused(receipts: list[SignedReceipt], fault: str) -> None:
    with pytest.raises(HostileInput, match=fault):
        check(receipts)


def test_whose_certificates_show_a_signature() -> None:
    for owner, receipt, fault in [
        (SITES["east"], signed("south", SITES["east"]), "The receipt of south describes a different release"),
        (SITES["east"], signed("south"), "The receipt of south is not signed by that member"),
        (CENTRE, signed("south", CENTRE), "The certificate of south does not hold"),
        (credentials_of("south", of="elsewhere"), signed("south"), "The certificate of south does not hold"),
    ]:
        with pytest.raises(HostileInput, match=fault):
            check(cohort(south=receipt), {**CERTIFICATES, "south": owner.identity.certificate})
    ending = {**CERTIFICATES, "south": credentials_of("south", days=1).identity.certificate}
    assert len(check_cohort(cohort(), ending, AUTHORITY, START + 86_400)) == 4
    with pytest.raises(HostileInput, match="The certificate of south does not hold"):
        check_cohort(cohort(), ending, AUTHORITY, START + 86_401)
    with pytest.raises(HostileInput, match="There is no certificate of south"):
        check(cohort(), {name: value for name, value in CERTIFICATES.items() if name != "south"})


def test_a_members_own_receipt_is_for_what_it_reserved() -> None:
    checked = check(cohort())
    assert own_receipt(checked, "west", RELEASE) == checked[3].receipt
    for found, name, release in [
        (checked, "nobody", RELEASE),
        (checked[:3], "west", RELEASE),
        ([*checked, checked[3]], "west", RELEASE),
        ([], "west", RELEASE),
        (checked, "west", make_reservation(2)),
        (checked, "west", replace(RELEASE, dataset="x")),
    ]:
        with pytest.raises(HostileInput, match="not for the release that this site reserved"):
            own_receipt(found, name, release)


def word(shown: list[SignedReceipt], signer: Credentials = CENTRE, **changes: Any) -> Witness:
    digest = receipts_digest(shown)
    said = Countersignature(STUDY, COORDINATOR, RELEASE.round, RELEASE.attempt, RELEASE.context, digest, 2, bytes(32))
    return Witness(tuple(shown), countersign(replace(said, **changes), signer.signing_key), CERTIFICATES)


def test_a_coordinator_signs_for_exactly_these() -> None:
    receipts = cohort()
    checked = check(receipts)
    assert check_countersignature(word(receipts), checked, AUTHORITY, START) == CENTRE.identity
    alone = [signed("north")]  # of a cohort that check_cohort would not let pass
    first: list[CheckedReceipt] = checked[:1]
    assert check_countersignature(word(alone), first, AUTHORITY, START) == CENTRE.identity
    for witness, fault in [
        (word(receipts, round=9), "for another round or attempt"),
        (word(receipts, attempt=9), "for another round or attempt"),
        (word(receipts, study=OTHER_STUDY), "for another study or context"),
        (word(receipts, context=bytes(32)), "for another study or context"),
        (word(receipts, receipts=bytes(32)), "countersigned different receipts"),
        (word(receipts, signer=SITES["north"]), "signature"),
        (word(receipts, coordinator="other"), "There is no certificate of the coordinator other"),
        (word(receipts, SITES["north"], coordinator="north"), "That of a participant"),
    ]:
        with pytest.raises(HostileInput, match=f"(?i){fault}"):
            check_countersignature(witness, checked, AUTHORITY, START)
    with pytest.raises(HostileInput, match=r"(?i)expired"):
        check_countersignature(word(receipts), checked, AUTHORITY, START + 4000 * 86_400)


def test_which_of_a_sites_keys_signed() -> None:
    first, second, third = (credentials_of("north", secret=secret) for secret in (1, 2, 3))
    certificates = [each.identity.certificate for each in (third, second, first)]
    receipt: Receipt = any_receipt(participant="north")
    for signer in (first, second, third):
        made = sign_receipt(receipt, signer.signing_key)
        assert find_signer(made, "north", certificates, AUTHORITY) == signer.identity
        assert find_signer(made, "north", [b"x", CENTRE.identity.certificate, *certificates], AUTHORITY) == signer.identity
    made = sign_receipt(receipt, first.signing_key)
    south = sign_receipt(any_receipt(participant="south"), SITES["south"].signing_key)
    for given, known in [
        (made, certificates[:2]),
        (made, []),
        (made, [credentials_of("north", of="elsewhere").identity.certificate]),
        (south, [SITES["south"].identity.certificate]),
        (south, certificates),
    ]:
        with pytest.raises(HostileInput, match="not signed by this site"):
            find_signer(given, "north", known, AUTHORITY)
