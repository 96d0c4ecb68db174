"""Property tests of every decoder of the wire: arbitrary and mangled bytes give a typed error, or a value that is the input.

Whatever a decoder takes must encode to exactly the bytes that came, so that no two inputs share a meaning or a digest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.federation import make_bed, make_data, make_request, schema_of
from support.ledgers import any_receipt
from veilsum.local.federation import as_directive
from veilsum_coordinator.storage.messages import assignment_message
from veilsum_node.canonical import canonical, parse_canonical
from veilsum_node.errors import HostileInput, RefusalCode
from veilsum_node.fields import LARGEST
from veilsum_node.identity import Label, verify_certificate
from veilsum_participant.protocol.approval import SignedStudy
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.store.studies import change_study
from veilsum_privacy.ledger.receipts import SignedReceipt, parse_receipt, sign_receipt, verify_receipt
from veilsum_privacy.securesum.boxes import BoxKey
from veilsum_privacy.securesum.check_words import CHECKS, CheckStatement, answer_words
from veilsum_privacy.securesum.context import (
    Assignment,
    decode_broadcast,
    encode_broadcast,
    parse_assignment,
)
from veilsum_privacy.securesum.roster import Enrolment, enrol, verify_enrolment, verify_roster
from veilsum_privacy.study.study import Study, parse_study, study_digest
from veilsum_proto import federation_pb2 as pb

MANY = settings(max_examples=150, deadline=None)
FEW = settings(max_examples=40, deadline=None)


@dataclass(frozen=True)
class World:
    """Valid messages to mangle, and what is needed to check them."""

    study: Study
    core: ParticipantCore
    enrolments: tuple[Enrolment, ...]
    receipt: SignedReceipt

    @property
    def digest(self) -> bytes:
        return study_digest(self.study.to_bytes())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    data = make_data("abc", 3)
    bed = make_bed(tmp_path_factory.mktemp("federation"), data)
    study = bed.compile(make_request(schema_of(2), epsilon=None))
    key = study_digest(study.to_bytes())
    enrolments = tuple(
        enrol(key, site.credentials.identity, BoxKey.generate().public, site.credentials.signing_key)
        for site in bed.sites.values()
    )
    signed = sign_receipt(any_receipt(key, "a"), bed.sites["a"].credentials.signing_key)
    return World(study, ParticipantCore(bed.sites["a"]), enrolments, signed)


def _assignment() -> bytes:
    cohort = tuple((name, bytes(16)) for name in "abc")
    return Assignment(1, 1, "statistics", cohort, bytes(32), 2_000_000_000).to_bytes()


def _mangled(draw: st.DrawFn, whole: bytes) -> bytes:
    """``whole`` with a few bytes changed, cut out, doubled or put in."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        until = min(len(data), at + draw(st.integers(0, 8)))
        match draw(st.integers(0, 3)):
            case 0:
                data[at:until] = draw(st.binary(min_size=until - at, max_size=until - at))
            case 1:
                del data[at:until]
            case 2:
                data[at:at] = data[at:until]
            case _:
                data[at:at] = draw(st.binary(max_size=8))
    return bytes(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=12) | st.binary(max_size=20).map(bytes.hex),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=20,
)


def _written(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _replaced(draw: st.DrawFn, whole: bytes) -> bytes:
    """Canonical JSON with one field of any depth replaced, removed or added."""
    value = json.loads(whole)
    holder = value
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            break
        key = draw(st.sampled_from(keys))
        if isinstance(holder[key], dict | list) and draw(st.booleans()):
            holder = holder[key]
            continue
        match draw(st.integers(0, 2)):
            case 0:
                holder[key] = draw(JSON)
            case 1:
                del holder[key]
            case _ if isinstance(holder, dict):
                holder[draw(st.text(max_size=6))] = draw(JSON)
            case _:
                holder.append(draw(JSON))
        break
    return _written(value)


def _otherwise(draw: st.DrawFn, value: object) -> bytes:
    """The same value, most often in another form than the canonical one."""
    changed = list(value.items())[::-1] if isinstance(value, dict) else None
    text = json.dumps(
        dict(changed) if changed else value,
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from([(",", ":"), (", ", ":"), (",", ": ")])),
    )
    return draw(st.sampled_from(["", " ", "\n"])).encode() + text.encode("utf-8", "surrogatepass")


def _check(decode: Callable[[bytes], object], encode: Callable[[object], bytes], data: bytes) -> None:
    try:
        value = decode(data)
    except HostileInput:
        return
    assert encode(value) == data


def _inputs(draw: st.DrawFn, whole: bytes) -> bytes:
    match draw(st.integers(0, 4)):
        case 0:
            return draw(st.binary(max_size=400))
        case 1:
            return _written(draw(JSON))
        case 4:
            return _otherwise(draw, json.loads(whole))
        case 2:
            return _mangled(draw, whole)
        case _:
            return _replaced(draw, whole)


@MANY
@given(st.data())
def test_canonical_json(data: st.DataObject) -> None:
    _check(lambda item: parse_canonical(item, what="value"), canonical, _inputs(data.draw, _assignment()))


@MANY
@given(st.data())
def test_studies(world: World, data: st.DataObject) -> None:
    whole = world.study.to_bytes()
    assert parse_study(whole) == world.study
    _check(parse_study, lambda value: value.to_bytes(), _inputs(data.draw, whole))  # type: ignore[attr-defined]


@MANY
@given(st.data())
def test_assignments(data: st.DataObject) -> None:
    assert parse_assignment(_assignment()).to_bytes() == _assignment()
    _check(parse_assignment, lambda value: value.to_bytes(), _inputs(data.draw, _assignment()))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"v":1', b'"v":true'),
        (b'"v":1', b'"v":2'),
        (b'"round":1', b'"round":true'),
        (b'"round":1', b'"round":0'),
        (b'"attempt":1', b'"attempt":"1"'),
        (b'["a",', b"[1,"),
        (bytes(16).hex().encode(), b"AB" * 16),
        (bytes(16).hex().encode(), b"00 " * 16),
        (bytes(32).hex().encode(), b"AB" * 32),
        (b'"label":"statistics"', b'"label":7'),
        (b'[["a",', b'[["a","a",'),
    ],
)
def test_assignments_written_in_another_way(old: bytes, new: bytes) -> None:
    assert old in _assignment()
    with pytest.raises(HostileInput):
        parse_assignment(_assignment().replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"v":6', b'"v":true'),
        (b'"v":6', b'"v":6.0'),
        (b'"v":6', b'"v":2'),
        (b'"number":1', b'"number":true'),
        (b'"number":1', b'"number":0'),
        (bytes(32).hex().encode(), b"AB" * 32),
        (bytes(32).hex().encode(), b"00 " * 32),
        (b'"participant":"a"', b'"participant":1'),
    ],
)
def test_receipts_written_in_another_way(world: World, old: bytes, new: bytes) -> None:
    assert old in world.receipt.body
    with pytest.raises(HostileInput):
        parse_receipt(world.receipt.body.replace(old, new, 1))


@MANY
@given(st.data())
def test_receipts(world: World, data: st.DataObject) -> None:
    whole = world.receipt.body
    assert parse_receipt(whole).to_bytes() == whole
    _check(parse_receipt, lambda value: value.to_bytes(), _inputs(data.draw, whole))  # type: ignore[attr-defined]


@MANY
@given(st.data())
def test_signed_receipts(world: World, data: st.DataObject) -> None:
    """No change of one byte of body or signature verifies."""
    body, signature, signer = world.receipt.body, world.receipt.signature, world.core.site.credentials.identity
    assert verify_receipt(world.receipt, signer, world.digest, bytes(32)).number == 1
    changed = SignedReceipt(_mangled(data.draw, body), signature)
    if data.draw(st.booleans()):
        changed = SignedReceipt(body, _mangled(data.draw, signature))
    if changed == world.receipt:
        return
    with pytest.raises(HostileInput):
        verify_receipt(changed, signer, world.digest, bytes(32))


@MANY
@given(st.data())
def test_enrolments(world: World, data: st.DataObject) -> None:
    site = world.core.site
    whole = world.enrolments[0]
    assert verify_enrolment(whole, world.digest, site.credentials.authority, site.clock()).name == "a"
    field = data.draw(st.sampled_from(("certificate", "body", "signature")))
    changed = Enrolment(**(vars(whole) | {field: _inputs(data.draw, whole.body) if field == "body" else b""}))
    if field != "body":
        changed = Enrolment(**(vars(whole) | {field: _mangled(data.draw, getattr(whole, field))}))
    if changed == whole:
        return
    with pytest.raises(HostileInput):
        verify_enrolment(changed, world.digest, site.credentials.authority, site.clock())


@FEW
@given(st.data())
def test_certificates(world: World, data: st.DataObject) -> None:
    site = world.core.site
    whole = world.enrolments[0].certificate
    raw = _mangled(data.draw, whole)
    try:
        identity = verify_certificate(raw, site.credentials.authority, site.clock(), None)
    except HostileInput:
        return
    assert identity.certificate == whole


@FEW
@given(st.lists(st.sampled_from(range(3)), max_size=5).filter(lambda chosen: chosen != [0, 1, 2]))
@example([0, 1])  # min_cohort is three
@example([2, 1, 0])
@example([0, 0, 1, 2])
def test_rosters(world: World, chosen: list[int]) -> None:
    """Any other order, selection or repetition than the sorted whole is refused."""
    site = world.core.site
    more = world.study, world.digest, site.credentials.authority, site.clock()
    whole = list(world.enrolments)
    assert [member.enrolment for member in verify_roster(whole, *more).members] == whole
    with pytest.raises(HostileInput):
        verify_roster([whole[index] for index in chosen], *more)


def _statement(modulus: int = 2**39 - 7) -> CheckStatement:
    return CheckStatement(bytes(32), "a", 1, 2, bytes(32), bytes([7]) * 32, bytes([255]) * 32, (0, modulus - 1, 5))


@MANY
@given(st.data())
def test_answers(data: st.DataObject) -> None:
    modulus, whole = 2**39 - 7, _statement().to_bytes()
    assert answer_words(whole, modulus) == _statement().words
    try:
        words = answer_words(_inputs(data.draw, whole), modulus)
    except HostileInput:
        return
    assert len(words) == CHECKS
    assert all(type(word) is int and 0 <= word < modulus for word in words)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"[0,549755813880,5]", b"[0,549755813880]"),
        (b"[0,549755813880,5]", b"[0,549755813881,5]"),
        (b"[0,549755813880,5]", b"[0,-1,5]"),
        (b"[0,549755813880,5]", b"[0,1,true]"),
        (b"[0,549755813880,5]", b"[0,549755813880, 5]"),
        (b'"words":', b'"Words":'),
    ],
)
def test_answers_written_in_another_way(old: bytes, new: bytes) -> None:
    whole = _statement().to_bytes()
    assert old in whole
    with pytest.raises(HostileInput):
        answer_words(whole.replace(old, new, 1), 2**39 - 7)


ARRAYS = st.dictionaries(
    st.text(st.characters(codec="utf-8"), max_size=8).filter(lambda name: name != "__metadata__"),
    st.lists(st.floats(-LARGEST, LARGEST), max_size=6).map(lambda item: np.array(item, dtype=np.float64)),
    max_size=4,
)


@MANY
@given(ARRAYS)
def test_broadcasts_come_back(arrays: dict[str, np.ndarray]) -> None:
    decoded = decode_broadcast(encode_broadcast(arrays))
    assert decoded.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(decoded[name], array)


@MANY
@given(st.data())
def test_broadcasts(data: st.DataObject) -> None:
    hostile = st.sampled_from([0.0, 1.0, LARGEST, -LARGEST, np.nextafter(LARGEST, np.inf), 1e300, -np.inf, np.nan])
    scale = np.array([1.0, data.draw(hostile)])
    whole = encode_broadcast({"mean": np.arange(6.0).reshape(2, 3), "scale": scale})
    if np.abs(scale).max() <= LARGEST:
        assert decode_broadcast(whole)["scale"].tobytes() == scale.tobytes()
    else:
        with pytest.raises(HostileInput, match="numbers up to"):
            decode_broadcast(whole)
    raw = data.draw(st.binary(max_size=200)) if data.draw(st.booleans()) else _mangled(data.draw, whole)
    try:
        arrays = decode_broadcast(raw)
    except HostileInput:
        return
    for array in arrays.values():
        assert array.dtype == np.float64
        assert (np.abs(array) <= LARGEST).all()
    # the header's JSON may be written in other ways; its arrays must be what the digest-bound bytes say
    again = decode_broadcast(encode_broadcast(arrays))
    assert again.keys() == arrays.keys()
    assert all(again[name].tobytes() == array.tobytes() for name, array in arrays.items())


class Script:
    """A coordinator that answers every fetch with given bytes and remembers what it was told."""

    coordinator = "coordinator"

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.refusals: list[RefusalCode] = []
        self.answers: list[str] = []

    def fetch(self, kind: int, study: bytes, number: int = 0, attempt: int = 0) -> bytes:
        return self.data

    def refuse(self, study: bytes, code: RefusalCode, number: int, attempt: int, answers: int) -> None:
        self.refusals.append(code)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.answers.append(name)


KINDS = (
    pb.DIRECTIVE_KIND_ENROL,
    pb.DIRECTIVE_KIND_SEAL,
    pb.DIRECTIVE_KIND_UNSEAL,
    pb.DIRECTIVE_KIND_CONTRIBUTE,
    pb.DIRECTIVE_KIND_CHECK,
    pb.DIRECTIVE_KIND_CONSENT,
    pb.DIRECTIVE_KIND_UNSPECIFIED,
    77,
)


@MANY
@given(st.data(), st.sampled_from(KINDS))
def test_a_participant_refuses_objects_that_are_none(world: World, data: st.DataObject, kind: int) -> None:
    """Roster, boxes, receipts, sum, study: arbitrary bytes end in one refusal, and nothing is answered."""
    boxes = pb.BoxesObject(boxes=[pb.SealedBox(sender="b", recipient="a", ciphertext=bytes(64))])
    roster = pb.RosterObject(
        enrolments=[
            pb.SignedEnrolment(certificate=e.certificate, body=e.body, signature=e.signature) for e in world.enrolments
        ]
    )
    whole = data.draw(st.sampled_from([roster, boxes])).SerializeToString()
    raw = data.draw(st.binary(max_size=300)) if data.draw(st.booleans()) else _mangled(data.draw, whole)
    script = Script(raw)
    directive = pb.Directive(
        kind=kind,  # type: ignore[arg-type]
        study=data.draw(st.sampled_from([world.digest, bytes(32), b"", bytes(31)])),
        round=data.draw(st.sampled_from([0, 1, 2**64 - 1])),
        attempt=data.draw(st.sampled_from([0, 1, 2**64 - 1])),
        assignment=data.draw(st.sampled_from([pb.Assignment(), assignment_message(parse_assignment(_assignment()))])),
    )
    world.core.handle(as_directive(directive), script)  # type: ignore[arg-type]
    assert len(script.refusals) == 1
    assert not script.answers


@MANY
@given(st.data())
def test_a_joined_participant_refuses_forged_rosters_and_boxes(joined: tuple[World, bytes], data: st.DataObject) -> None:
    """After an honest enrolment only the roster with this site's own enrolment is sealed for; others change nothing."""
    world, honest = joined
    with world.core.site.database.transaction() as connection:  # else an honest roster is kept, and any other is a second one
        change_study(connection, world.digest, roster=None)
    script = Script(_mangled(data.draw, honest))
    kind = data.draw(st.sampled_from([pb.DIRECTIVE_KIND_SEAL, pb.DIRECTIVE_KIND_UNSEAL]))
    if kind == pb.DIRECTIVE_KIND_SEAL and data.draw(
        st.booleans()
    ):  # one that verifies: another key for boxes, signed by itself
        other, site = pb.RosterObject.FromString(honest), world.core.site.credentials
        signed = enrol(world.digest, site.identity, BoxKey.generate().public, site.signing_key)
        other.enrolments[0].body, other.enrolments[0].signature = signed.body, signed.signature
        script = Script(other.SerializeToString())
    world.core.handle(as_directive(pb.Directive(kind=kind, study=world.digest)), script)  # type: ignore[arg-type]
    if script.answers:  # bytes that protobuf skips: the parsed roster is the honest one
        assert kind == pb.DIRECTIVE_KIND_SEAL
        assert pb.RosterObject.FromString(script.data).enrolments == pb.RosterObject.FromString(honest).enrolments
    else:
        assert len(script.refusals) == 1


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, bytes]:
    """A participant that enrolled, and the serialised roster with its own enrolment."""
    data = make_data("abc", 3)
    bed = make_bed(tmp_path_factory.mktemp("joined"), data)
    study = bed.compile(make_request(schema_of(2), epsilon=None))
    key = study_digest(study.to_bytes())
    signature = bed.analyst.signing_key.sign(Label.STUDY, study.to_bytes())
    certificate = bed.analyst.identity.certificate
    cores = {name: ParticipantCore(site) for name, site in bed.sites.items()}
    signed = SignedStudy(study.to_bytes(), signature, certificate, "coordinator")
    enrolments = tuple(core.membership.on_study(key, signed) for core in cores.values())
    messages = [pb.SignedEnrolment(certificate=e.certificate, body=e.body, signature=e.signature) for e in enrolments]
    receipt = sign_receipt(any_receipt(key, "a"), bed.sites["a"].credentials.signing_key)
    return World(study, cores["a"], enrolments, receipt), pb.RosterObject(enrolments=messages).SerializeToString()
