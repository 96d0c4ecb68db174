"""What members agree on before a sum: boxes, enrolments and roster. Every wrong one is refused."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from support.certificates import NOW, Forge
from support.federation import DATASET, schema_of
from veilsum_node.canonical import canonical, digest
from veilsum_node.errors import HostileInput
from veilsum_node.identity import Identity, Label, Role, SigningKey, verify_certificate
from veilsum_privacy.securesum.boxes import (
    PUBLIC_KEY_BYTES,
    SHARE_BYTES,
    Box,
    BoxKey,
    pair_seed,
    public_key,
    seal,
    unseal,
)
from veilsum_privacy.securesum.roster import Enrolment, enrol, verify_enrolment, verify_roster
from veilsum_privacy.study.study import PrivacyDemand, Study, TaskDeclaration

STUDY, ROSTER, CONTEXT = (bytes([number]) * 32 for number in range(1, 4))
MEANS = {"clip": 1.0, "missing": "centre", "count_weight": 0.5, "sum_weight": 1.0}
FORGE = Forge()


@cache
def _party(name: str) -> tuple[Identity, SigningKey, BoxKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    identity = verify_certificate(FORGE.leaf(name=name, key=key), FORGE.ca, NOW, Role.PARTICIPANT)
    return identity, SigningKey(key), BoxKey.generate()


def _seal(secret: bytes = b"a seed", **changes: Any) -> Box:
    """A box from north to south, right unless told otherwise."""
    _, key, _ = _party("north")
    fields = {"study": STUDY, "roster": ROSTER, "sender": "north", "recipient": "south", "key": key,
              "public": _party("south")[2].public}  # fmt: skip
    return seal(secret, **(fields | changes))  # type: ignore[arg-type]


def _unseal(box: Box, **changes: Any) -> bytes:
    fields = {"study": STUDY, "roster": ROSTER, "sender": _party("north")[0], "recipient": "south", "key": _party("south")[2]}
    return unseal(box, **(fields | changes))  # type: ignore[arg-type]


@given(st.binary(max_size=500))
def test_a_box_carries_its_secret_and_nothing_visible(secret: bytes) -> None:
    box = _seal(secret)
    assert _unseal(box) == secret
    assert len(secret) < 8 or secret not in box.ciphertext
    assert _seal(secret).ciphertext != box.ciphertext


def test_a_box_opens_only_where_it_was_meant_to() -> None:
    box = _seal()
    for changes in (
        {"study": ROSTER},
        {"roster": STUDY},
        {"sender": _party("west")[0]},
        {"recipient": "west"},
        {"key": _party("west")[2]},
        {"recipient": "west", "key": _party("west")[2]},
    ):
        with pytest.raises(HostileInput):
            _unseal(box, **changes)


@pytest.mark.parametrize("change", [{"sender": "west"}, {"recipient": "west"}])
def test_a_box_says_itself_whom_it_is_for(change: dict[str, Any]) -> None:
    """What was sealed and signed is as expected, only the names beside it are others."""
    with pytest.raises(HostileInput, match="names another sender or recipient"):
        _unseal(replace(_seal(), **change))


def test_a_box_under_other_names_is_refused_though_its_signature_holds() -> None:
    for changes in ({"study": ROSTER}, {"roster": STUDY}, {"recipient": "west"}):
        box = _seal(**changes)
        with pytest.raises(HostileInput):
            _unseal(box)
        with pytest.raises(HostileInput):
            _unseal(replace(box, recipient="south"))


def test_another_sender_cannot_take_over_a_box() -> None:
    """Info names the sender: signing someone else's ciphertext anew does not make it open."""
    box, thief = _seal(), _party("west")
    info = canonical(
        {"v": 1, "study": STUDY, "roster": ROSTER, "sender": "west", "recipient": "south", "purpose": "pair-share"}
    )
    stolen = replace(box, sender="west", signature=thief[1].sign(Label.SEEDS, digest("box", info, box.ciphertext)))
    with pytest.raises(HostileInput, match="does not open"):
        _unseal(stolen, sender=thief[0])
    with pytest.raises(HostileInput, match="signature"):
        _unseal(replace(box, sender="west"), sender=thief[0])
    with pytest.raises(HostileInput, match="signature"):
        _unseal(_seal(key=thief[1]))


def test_a_box_that_was_sealed_for_something_else_is_refused() -> None:
    """As those in which a member dealt keys to all, up to version 5 of the protocol: sealed and signed by the same sender."""
    box, key = _seal(), _party("north")[1]
    info = {"v": 1, "study": STUDY, "roster": ROSTER, "sender": "north", "recipient": "south", "purpose": "dealt-keys"}
    signature = key.sign(Label.SEEDS, digest("box", canonical(info), box.ciphertext))
    with pytest.raises(HostileInput, match="signature"):
        _unseal(replace(box, signature=signature))


def test_an_altered_box_is_refused() -> None:
    box, key = _seal(), _party("north")[1]
    info = canonical(
        {"v": 1, "study": STUDY, "roster": ROSTER, "sender": "north", "recipient": "south", "purpose": "pair-share"}
    )
    for place in range(0, len(box.ciphertext), 37):
        altered = bytearray(box.ciphertext)
        altered[place] ^= 1
        with pytest.raises(HostileInput):
            _unseal(replace(box, ciphertext=bytes(altered)))
        signed = key.sign(Label.SEEDS, digest("box", info, bytes(altered)))  # even if its sender signs it
        with pytest.raises(HostileInput, match="does not open"):
            _unseal(replace(box, ciphertext=bytes(altered), signature=signed))
    for ciphertext in (b"", box.ciphertext[:-1], box.ciphertext + b"\0", bytes(len(box.ciphertext))):
        with pytest.raises(HostileInput):
            _unseal(replace(box, ciphertext=ciphertext))


def test_a_signature_for_one_purpose_does_not_serve_another() -> None:
    box, key = _seal(), _party("north")[1]
    info = canonical(
        {"v": 1, "study": STUDY, "roster": ROSTER, "sender": "north", "recipient": "south", "purpose": "pair-share"}
    )
    for label in Label:
        signed = replace(box, signature=key.sign(label, digest("box", info, box.ciphertext)))
        if label is Label.SEEDS:
            assert _unseal(signed) == b"a seed"
        else:
            with pytest.raises(HostileInput, match="signature"):
                _unseal(signed)


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)
SHARE = st.binary(min_size=SHARE_BYTES, max_size=SHARE_BYTES)


@given(st.lists(NAMES, min_size=2, max_size=2, unique=True), st.tuples(SHARE, SHARE), st.tuples(SHARE, SHARE))
def test_both_sides_mix_the_same_seed(names: list[str], shares: tuple[bytes, bytes], bound: tuple[bytes, bytes]) -> None:
    """RFC 5869 by the hmac module: both shares in the order of the names' bytes, expanded to everything they are bound to."""
    study, roster = bound
    mine = dict(zip(names, shares, strict=True))
    seed = pair_seed(mine, study=study, roster=roster)
    assert pair_seed(dict(reversed(mine.items())), study=study, roster=roster) == seed
    first, second = sorted(names, key=lambda name: name.encode())
    info = b"".join(
        len(part).to_bytes(4, "big") + part
        for part in (b"veilsum/1/pair-seed", study, roster, first.encode(), second.encode())
    )
    extracted = hmac.digest(bytes(32), mine[first] + mine[second], "sha256")
    assert seed == hmac.digest(extracted, info + b"\x01", "sha256")


def test_a_seed_is_for_one_pair_of_one_roster_of_one_study() -> None:
    shares = {"north": b"\1" * 32, "south": b"\2" * 32}
    seeds = {
        pair_seed(shares, study=STUDY, roster=ROSTER),
        pair_seed(shares, study=ROSTER, roster=ROSTER),
        pair_seed(shares, study=STUDY, roster=STUDY),
        pair_seed(shares, study=ROSTER, roster=STUDY),
        pair_seed({"north": b"\1" * 32, "west": b"\2" * 32}, study=STUDY, roster=ROSTER),
        pair_seed({"north": b"\2" * 32, "south": b"\1" * 32}, study=STUDY, roster=ROSTER),
        pair_seed({"north": b"\1" * 32, "south": b"\1" * 32}, study=STUDY, roster=ROSTER),
        pair_seed({"nor": b"\1" * 32, "thsouth": b"\2" * 32}, study=STUDY, roster=ROSTER),
    }
    assert len(seeds) == 8


@pytest.mark.parametrize("shares", [{}, {"a": bytes(32)}, {"a": bytes(32), "b": bytes(31)}, dict.fromkeys("abc", bytes(32))])
def test_a_seed_takes_two_whole_shares(shares: dict[str, bytes]) -> None:
    with pytest.raises(HostileInput):
        pair_seed(shares, study=STUDY, roster=ROSTER)


def test_box_keys_survive_their_bytes_and_show_nothing() -> None:
    key = _party("south")[2]
    assert _unseal(_seal(), key=BoxKey.parse(key.to_bytes())) == b"a seed"
    assert repr(key) == str(key) == "BoxKey()"
    assert len(key.public) == PUBLIC_KEY_BYTES
    for data in (b"", key.to_bytes()[:-1], key.to_bytes() + b"\0"):
        with pytest.raises(HostileInput):
            BoxKey.parse(data)


def test_public_keys_are_checked() -> None:
    public = _party("south")[2].public
    public_key(public)
    for data, why in (
        (b"", "length"),
        (public[:-1], "length"),
        (public + b"\0", "length"),
        (b"\xff" * len(public), "invalid"),
    ):
        with pytest.raises(HostileInput, match=why):
            public_key(data)
        with pytest.raises(HostileInput, match=why):
            _seal(public=data)


def _study(**changes: Any) -> Study:
    names = ("east", "north", "south", "west")
    fields: dict[str, Any] = {
        "version": 1, "name": "trial", "federation": "0" * 64, "coordinator": "coordinator", "nonce": "0" * 32,
        "created": NOW - 10, "expires": NOW + 10, "method": "statistics", "parameters": {}, "dataset": DATASET,
        "data": schema_of(2),
        "privacy": PrivacyDemand(epsilon=None, delta=1e-5, noise="none", assumed_colluders=1, min_cohort=3,
                                 cohort_difference="strict", unit="record"),
        "tasks": (TaskDeclaration(label="t", task="feature-means", parameters=MEANS, disclosure="joint", releases=1, grid=10,
                                  variance=0),),
        "participants": names, "weights": dict.fromkeys(names, 1),
    }  # fmt: skip
    return Study(**(fields | changes))


def _enrol(name: str, study: bytes = STUDY) -> Enrolment:
    identity, key, box = _party(name)
    return enrol(study, identity, box.public, key)


def _verify(enrolments: Sequence[Enrolment], **study: Any) -> Any:
    return verify_roster(enrolments, _study(**study), STUDY, FORGE.ca, NOW)


def test_a_roster_holds_everyone_in_order() -> None:
    enrolments = [_enrol(name) for name in ("east", "north", "south")]
    roster = _verify(enrolments)
    assert roster.names == ("east", "north", "south")
    assert roster.member("north").public == _party("north")[2].public
    assert roster.digest == digest("veilsum/1/roster", *(enrolment.digest for enrolment in enrolments))
    with pytest.raises(HostileInput):
        roster.member("west")


def test_a_wrong_roster_is_refused() -> None:
    names = ("east", "north", "south")
    good = [_enrol(name) for name in names]
    other = Forge()
    key = ec.generate_private_key(ec.SECP256R1())
    impostor = other.leaf(name="north", key=key)  # certified under the same name, by another authority
    body = canonical({"v": 1, "study": STUDY, "participant": "north", "public": _party("north")[2].public})
    stranger = Enrolment(impostor, body, SigningKey(key).sign(Label.ENROLMENT, body))
    twin_key = _party("north")[1]
    east, _, _ = _party("east")
    shared = enrol(STUDY, _party("south")[0], _party("north")[2].public, _party("south")[1])
    for wrong in (
        good[::-1],
        [good[0], good[0], good[1], good[2]],
        good[:2],
        [],
        [good[0], stranger, good[2]],
        [good[0], good[1], shared],  # south brings north's HPKE key
        [enrol(STUDY, east, _party("east")[2].public, twin_key), *good[1:]],  # signed by someone else's key
        [_enrol("east", ROSTER), *good[1:]],  # of another study
        [*good, _enrol("zeta")],  # not invited
    ):
        with pytest.raises(HostileInput):
            _verify(wrong)


@pytest.mark.parametrize("certified", [True, False])
def test_no_two_members_share_a_key(certified: bool) -> None:
    """Neither a certified one nor one that boxes are sealed to."""
    key = ec.generate_private_key(ec.SECP256R1())
    north = verify_certificate(FORGE.leaf(name="north", key=key), FORGE.ca, NOW, Role.PARTICIPANT)
    box = _party("north")[2].public

    def roster(name: str, own: ec.EllipticCurvePrivateKey, public: bytes) -> list[Enrolment]:
        south = verify_certificate(FORGE.leaf(name=name, key=own), FORGE.ca, NOW, Role.PARTICIPANT)
        return [_enrol("east"), enrol(STUDY, north, box, SigningKey(key)), enrol(STUDY, south, public, SigningKey(own))]

    other, public = ec.generate_private_key(ec.SECP256R1()), _party("south")[2].public
    assert _verify(roster("south", other, public)).names == ("east", "north", "south")
    with pytest.raises(HostileInput, match="share a key"):
        _verify(roster("south", key, public) if certified else roster("south", other, box))


def test_a_roster_of_long_ago_is_verified_without_a_time() -> None:
    enrolments, late = [_enrol(name) for name in ("east", "north", "south")], NOW + 365 * 86_400
    with pytest.raises(HostileInput, match="expired"):
        verify_roster(enrolments, _study(), STUDY, FORGE.ca, late)
    assert verify_roster(enrolments, _study(), STUDY, FORGE.ca, None) == _verify(enrolments)
    with pytest.raises(HostileInput):
        verify_roster(enrolments, _study(), STUDY, Forge().ca, None)


def test_the_roster_digest_binds_every_byte() -> None:
    first = [_enrol(name) for name in ("east", "north", "south")]
    again = [first[0], _enrol("north"), first[2]]  # the same word, signed anew
    assert _verify(first).digest != _verify(again).digest


def test_malformed_enrolments_are_refused() -> None:
    identity, key, box = _party("north")

    def signed(value: Any) -> Enrolment:
        body = value if isinstance(value, bytes) else canonical(value)
        return Enrolment(identity.certificate, body, key.sign(Label.ENROLMENT, body))

    right: dict[str, Any] = {"v": 1, "study": STUDY, "participant": "north", "public": box.public}
    assert verify_enrolment(signed(right), STUDY, FORGE.ca, NOW).name == "north"
    for value in (
        right | {"v": 2},
        right | {"study": ROSTER},
        right | {"participant": "south"},
        right | {"public": "zz"},
        right | {"public": box.public[:-1]},
        right | {"public": 5},
        right | {"more": 1},
        {name: item for name, item in right.items() if name != "v"},
        [],
        None,
        b"",
        b"{",
        canonical(right) + b" ",
        b"\xff",
    ):
        with pytest.raises(HostileInput):
            verify_enrolment(signed(value), STUDY, FORGE.ca, NOW)
    body = canonical(right)
    for label in set(Label) - {Label.ENROLMENT}:
        with pytest.raises(HostileInput, match="signature"):
            verify_enrolment(Enrolment(identity.certificate, body, key.sign(label, body)), STUDY, FORGE.ca, NOW)
    with pytest.raises(HostileInput):
        verify_enrolment(signed(right), STUDY, FORGE.ca, NOW + 365 * 86_400)  # the certificate has expired
