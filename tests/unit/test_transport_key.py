"""A participant's second certificate, of the key that its connections show: who may have one, and what it is good for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.certificates import DAY, NOW, now
from veilsum_node.errors import ConfigurationError, HostileInput, StateError, VeilsumError
from veilsum_node.identity import Authority, Role, load_credentials, new_key_and_csr, verify_certificate
from veilsum_node.identity.directory import parse_directory
from veilsum_node.identity.kit import Kit, make_kit
from veilsum_node.identity.provision import install, prepare, prepare_transport
from veilsum_node.identity.releases import sign_directory
from veilsum_node.identity.tls import load_transport, transport_folder
from veilsum_participant.checks import CheckOutcome, SiteCheck
from veilsum_participant.settings.config import ParticipantConfig
from veilsum_privacy.securesum.boxes import BoxKey
from veilsum_privacy.securesum.roster import enrol, verify_enrolment

PUBLIC = BoxKey.generate().public


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return make_kit(tmp_path / "kit", ["north", "south"], clock=now)


def _signed(authority: Authority, name: str, **more: bool) -> bytes:
    _, csr = new_key_and_csr(name, Role.TRANSPORT)
    return authority.sign(csr, role=Role.TRANSPORT, name=name, **more)


def test_it_is_a_second_key_of_the_same_party(kit: Kit) -> None:
    own = load_credentials(kit.participants[0].identity, NOW, Role.PARTICIPANT)
    shown = load_transport(kit.participants[0].identity, NOW, own)
    assert (shown.identity.name, shown.identity.role) == ("north", Role.TRANSPORT)
    assert shown.federation_id == own.federation_id
    assert shown.identity.fingerprint != own.identity.fingerprint


def test_only_a_participant_has_one(kit: Kit) -> None:
    for party in (kit.coordinator, kit.analyst, kit.operator):
        assert not (party.identity / "transport").exists()
    authority = Authority.load(kit.authority, now)
    for name in ("coordinator", "analyst", "operator", "stranger"):
        with pytest.raises(StateError, match="No participant"):
            _signed(authority, name)


def test_it_neither_takes_nor_gives_up_the_partys_own_key(kit: Kit) -> None:
    authority = Authority.load(kit.authority, now)
    north = kit.participants[0].identity
    with pytest.raises(StateError, match="another key"):
        _signed(authority, "north")
    assert _signed(authority, "north", replace=True)
    again = (north / "request.csr").read_bytes()
    assert authority.sign(again, role=Role.PARTICIPANT, name="north"), "a new key of connections does not make a new name"
    with pytest.raises(HostileInput, match="different role"):
        authority.sign(again, role=Role.TRANSPORT, name="north")
    bare = _without_role(north / "transport" / "key.pem", "north")
    with pytest.raises(StateError, match="certified for 'north/transport' already"):
        authority.sign(bare, role=Role.PARTICIPANT, name="north", replace=True)


def _without_role(key: Path, name: str) -> bytes:
    """A request of an existing key that states no role."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
    from cryptography.x509.oid import NameOID

    private = load_pem_private_key(key.read_bytes(), None)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(private, hashes.SHA256())  # type: ignore[arg-type]
    return request.public_bytes(Encoding.PEM)


def test_it_goes_with_a_name_that_is_released(kit: Kit) -> None:
    authority = Authority.load(kit.authority, lambda: NOW + 400 * DAY)
    authority._record.release("north", NOW + 400 * DAY)
    with pytest.raises(StateError, match="No participant"):
        _signed(authority, "north")
    _, csr = new_key_and_csr("north", Role.PARTICIPANT)
    authority.sign(csr, role=Role.PARTICIPANT, name="north")
    assert _signed(authority, "north"), "the new owner's, without --replace"


def test_a_directory_lists_parties_by_the_key_that_signs(kit: Kit) -> None:
    authority = Authority.load(kit.authority, now)
    listed = parse_directory(sign_directory(authority), authority.certificate)
    own = {party.name: load_credentials(party.identity, NOW).identity.fingerprint for party in kit.participants}
    assert listed.keys(Role.PARTICIPANT) == own


def test_it_signs_nothing_that_others_believe(kit: Kit, tmp_path: Path) -> None:
    """An enrolment under it is none, and no ledger is kept by it."""
    own = load_credentials(kit.participants[0].identity, NOW)
    shown = load_transport(kit.participants[0].identity, NOW, own)
    study = bytes(32)
    with pytest.raises(HostileInput, match="not of a participant"):
        verify_certificate(shown.identity.certificate, own.authority, NOW, Role.PARTICIPANT)
    assert verify_enrolment(enrol(study, own.identity, PUBLIC, own.signing_key), study, own.authority, NOW).name == "north"
    with pytest.raises(VeilsumError, match="not of a participant"):
        verify_enrolment(enrol(study, shown.identity, PUBLIC, shown.signing_key), study, own.authority, NOW)
    with pytest.raises(ConfigurationError, match="not of a participant"):
        load_credentials(kit.participants[0].identity / "transport", NOW, Role.PARTICIPANT)


def test_anothers_is_refused(kit: Kit) -> None:
    north, south = (party.identity for party in kit.participants)
    own = load_credentials(north, NOW)
    shutil.rmtree(north / "transport")
    shutil.copytree(south / "transport", north / "transport")
    with pytest.raises(ConfigurationError, match="of south, not of north"):
        load_transport(north, NOW, own)
    shutil.rmtree(north / "transport")
    shutil.copytree(north, north / "transport", ignore=shutil.ignore_patterns("transport"))
    with pytest.raises(ConfigurationError, match="not of a transport"):
        load_transport(north, NOW, own)


def test_a_request_alone_changes_nothing_until_it_is_answered(kit: Kit, tmp_path: Path) -> None:
    """What `participant transport-key` makes at a site that was certified with one key."""
    identity = tmp_path / "identity"
    shutil.copytree(kit.participants[0].identity, identity, ignore=shutil.ignore_patterns("transport"))
    own = load_credentials(identity, NOW)
    request = prepare_transport(identity, "north")
    assert load_transport(identity, NOW, own) is own
    assert transport_folder(identity) == identity
    with pytest.raises(StateError, match="already exists"):
        prepare_transport(identity, "north")
    authority = Authority.load(kit.authority, now)
    certificate = authority.sign(request.read_bytes(), role=Role.TRANSPORT, name="north", replace=True)
    install(request.parent, certificate, authority.certificate_pem)
    assert load_transport(identity, NOW, own).identity.role is Role.TRANSPORT


def test_a_new_participant_has_both_keys(tmp_path: Path) -> None:
    party = prepare(tmp_path / "west", "west", Role.PARTICIPANT)
    assert {path.name for path in (party.identity / "transport").iterdir()} == {"key.pem", "request.csr"}
    assert (party.identity / "transport" / "key.pem").stat().st_mode & 0o777 == 0o600
    assert not (prepare(tmp_path / "c", "c", Role.COORDINATOR).identity / "transport").exists()


def test_the_check_says_whose_key_connections_show(kit: Kit) -> None:
    identity = kit.participants[0].identity
    fields = {
        "coordinator": "localhost:1",
        "identity": identity,
        "state": identity / "x.db",
        "datasets": {"a": {"path": "a.csv"}},
    }

    def row(at: int) -> tuple[CheckOutcome, str]:
        checks = SiteCheck(ParticipantConfig.model_validate(fields), lambda: at).run(reach=False)
        (found,) = [item for item in checks if item.check == "key of connections"]
        return found.status, f"{found.detail} {found.advice}"

    assert row(NOW)[0] is CheckOutcome.OK
    status, said = row(NOW + 350 * DAY)
    assert status is CheckOutcome.WARNING
    assert "sign" in said
    shutil.rmtree(identity / "transport")
    status, said = row(NOW)
    assert status is CheckOutcome.WARNING
    assert "veilsum participant transport-key" in said
