"""A certificate is believed only if every one of the numbered checks passes."""

from __future__ import annotations

import hashlib
import ipaddress
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from support.certificates import DAY, NOW, Forge, usage
from veilsum_node.errors import HostileInput
from veilsum_node.identity import Role, federation_id, load_authority_certificate, verify_certificate
from veilsum_node.identity.certificate import load_certificate

FORGE = Forge()
FOREIGN = Forge()
SECOND_KEY = ec.generate_private_key(ec.SECP256R1())


def test_a_right_certificate_gives_the_identity() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    data = FORGE.leaf(key=key)

    identity = verify_certificate(data, FORGE.ca, NOW, Role.PARTICIPANT)

    spki = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert (identity.name, identity.role) == ("north", Role.PARTICIPANT)
    assert identity.fingerprint == hashlib.sha256(spki).hexdigest()
    assert (identity.not_before, identity.not_after) == (NOW - 60, NOW + DAY)
    assert identity.certificate == data
    assert identity.public_key == key.public_key()


def test_pem_and_der_give_the_same_identity() -> None:
    data = FORGE.leaf()
    pem = x509.load_der_x509_certificate(data).public_bytes(Encoding.PEM)
    assert verify_certificate(pem, FORGE.ca, NOW, None) == verify_certificate(data, FORGE.ca, NOW, None)


@pytest.mark.parametrize("at", [NOW - 60, NOW + DAY])
def test_both_ends_of_the_validity_period_count(at: int) -> None:
    verify_certificate(FORGE.leaf(), FORGE.ca, at, None)


def test_a_coordinator_may_name_hosts() -> None:
    data = FORGE.leaf(
        name="hub",
        uris=["veilsum://trial/coordinator/hub"],
        alternatives=[x509.DNSName("hub.example"), x509.IPAddress(ipaddress.ip_address("192.0.2.1"))],
        extended=[ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
    )
    assert verify_certificate(data, FORGE.ca, NOW, Role.COORDINATOR).role is Role.COORDINATOR


WRONG: dict[str, Callable[[], bytes]] = {
    "expired": lambda: FORGE.leaf(not_before=NOW - 2 * DAY, not_after=NOW - 1),
    "not yet valid": lambda: FORGE.leaf(not_before=NOW + 1),
    "of a foreign authority with the same name": FOREIGN.leaf,
    "issued by another name": lambda: FORGE.leaf(issuer="other"),
    "signed by itself": lambda: FORGE.leaf(key=SECOND_KEY, signer=SECOND_KEY),
    "the authority's own": lambda: FORGE.ca.public_bytes(Encoding.DER),
    "an authority in a leaf's clothes": lambda: FORGE.leaf(constraints=x509.BasicConstraints(ca=True, path_length=None)),
    "that may sign certificates": lambda: FORGE.leaf(key_usage=usage(digital_signature=True, key_cert_sign=True)),
    "that may not sign": lambda: FORGE.leaf(key_usage=usage(key_agreement=True)),
    "of RSA": lambda: FORGE.leaf(key=rsa.generate_private_key(65537, 2048)),
    "of P-384": lambda: FORGE.leaf(key=ec.generate_private_key(ec.SECP384R1())),
    "of secp256k1": lambda: FORGE.leaf(key=ec.generate_private_key(ec.SECP256K1())),
    "signed with SHA-384": lambda: FORGE.leaf(algorithm=hashes.SHA384()),
    "without constraints": lambda: FORGE.leaf(omit=[x509.BasicConstraints]),
    "without key usage": lambda: FORGE.leaf(omit=[x509.KeyUsage]),
    "without extended key usage": lambda: FORGE.leaf(omit=[x509.ExtendedKeyUsage]),
    "without alternative names": lambda: FORGE.leaf(omit=[x509.SubjectAlternativeName]),
    "with an unknown extension": lambda: FORGE.leaf(
        extra=[x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.55555.1"), b"\x05\x00")]
    ),
    "with name constraints": lambda: FORGE.leaf(extra=[x509.NameConstraints([x509.DNSName("a.example")], None)]),
    "with two roles": lambda: FORGE.leaf(uris=["veilsum://trial/participant/north", "veilsum://trial/coordinator/north"]),
    "with its URI twice": lambda: FORGE.leaf(uris=["veilsum://trial/participant/north"] * 2),
    "with a second, foreign URI": lambda: FORGE.leaf(uris=["veilsum://trial/participant/north", "https://north.example"]),
    "with a URI of another name": lambda: FORGE.leaf(uris=["veilsum://trial/participant/south"]),
    "with a URI of another federation": lambda: FORGE.leaf(uris=["veilsum://other/participant/north"]),
    "with a URI of an unknown role": lambda: FORGE.leaf(uris=["veilsum://trial/superuser/north"]),
    "with a URI of another scheme": lambda: FORGE.leaf(uris=["https://trial/participant/north"]),
    "with a URI and more behind": lambda: FORGE.leaf(uris=["veilsum://trial/participant/north/"]),
    "with an upper-case role": lambda: FORGE.leaf(uris=["veilsum://trial/Participant/north"]),
    "with a mail address": lambda: FORGE.leaf(alternatives=[x509.RFC822Name("north@example.org")]),
    "of a participant with a host": lambda: FORGE.leaf(alternatives=[x509.DNSName("localhost")]),
    "of a participant who may serve": lambda: FORGE.leaf(
        extended=[ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    ),
    "of a coordinator who may not serve": lambda: FORGE.leaf(uris=["veilsum://trial/coordinator/north"]),
    "for any purpose": lambda: FORGE.leaf(extended=[ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE]),
    "with two common names": lambda: FORGE.leaf(common_names=["north", "north"]),
    "with an organisation": lambda: FORGE.leaf(attributes=[x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Hospital")]),
    "with a name that is none": lambda: FORGE.leaf(
        name="North Hospital", uris=["veilsum://trial/participant/North%20Hospital"]
    ),
    "empty": lambda: b"",
    "too long": lambda: FORGE.leaf() + bytes(8192),
    "too long by text around it": lambda: (
        x509.load_der_x509_certificate(FORGE.leaf()).public_bytes(Encoding.PEM) + b"\n" * 8192
    ),
    "with bytes behind": lambda: FORGE.leaf() + b"\x00",
    "cut off": lambda: FORGE.leaf()[:-1],
    "two in one file": lambda: 2 * x509.load_der_x509_certificate(FORGE.leaf()).public_bytes(Encoding.PEM),
    "no PEM in its frame": lambda: b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
}


@pytest.mark.parametrize("kind", WRONG)
def test_every_other_certificate_is_refused(kind: str) -> None:
    with pytest.raises(HostileInput):
        verify_certificate(WRONG[kind](), FORGE.ca, NOW, None)


@pytest.mark.parametrize("role", [Role.COORDINATOR, Role.ANALYST, Role.OPERATOR])
def test_another_role_is_refused(role: Role) -> None:
    with pytest.raises(HostileInput, match="not of a"):
        verify_certificate(FORGE.leaf(), FORGE.ca, NOW, role)


@pytest.mark.parametrize("at", [NOW - 2 * DAY, NOW + 11 * DAY])
def test_an_authority_out_of_its_period_certifies_nobody(at: int) -> None:
    data = FORGE.leaf(not_before=NOW - 5 * DAY, not_after=NOW + 50 * DAY)
    with pytest.raises(HostileInput, match=r"certificate of authority trial (has expired|is not valid yet)"):
        verify_certificate(data, FORGE.ca, at, None)


REFERENCE = FORGE.leaf()


@settings(max_examples=400, deadline=None)
@given(position=st.integers(0, len(REFERENCE) - 1), change=st.integers(1, 255))
def test_no_changed_byte_is_believed(position: int, change: int) -> None:
    data = bytearray(REFERENCE)
    data[position] ^= change
    with pytest.raises(HostileInput):
        verify_certificate(bytes(data), FORGE.ca, NOW, None)


def test_a_signature_has_no_unused_bits() -> None:
    """A bit string that ends in zeros may say that they are unused, which a parser believes: the same words, other bytes."""
    data = next(data for data in iter(FORGE.leaf, b"") if data[-1] % 2 == 0)
    unused = -len(x509.load_der_x509_certificate(data).signature) - 1
    verify_certificate(data, FORGE.ca, NOW, None)
    with pytest.raises(HostileInput, match="whole bytes"):
        verify_certificate(data[:unused] + b"\x01" + data[unused + 1 :], FORGE.ca, NOW, None)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=400))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(HostileInput):
        verify_certificate(data, FORGE.ca, NOW, None)
    with pytest.raises(HostileInput):
        load_authority_certificate(data)


def test_an_authority_certificate_is_loaded_and_named_by_its_digest() -> None:
    der = FORGE.ca.public_bytes(Encoding.DER)
    loaded = load_authority_certificate(FORGE.ca.public_bytes(Encoding.PEM))
    assert federation_id(loaded) == hashlib.sha256(der).hexdigest()


WRONG_AUTHORITIES: dict[str, Callable[[], bytes]] = {
    "a leaf": FORGE.leaf,
    "not a CA": lambda: FORGE.authority(constraints=x509.BasicConstraints(ca=False, path_length=None)).public_bytes(
        Encoding.DER
    ),
    "of longer paths": lambda: FORGE.authority(constraints=x509.BasicConstraints(ca=True, path_length=1)).public_bytes(
        Encoding.DER
    ),
    "of any path": lambda: FORGE.authority(constraints=x509.BasicConstraints(ca=True, path_length=None)).public_bytes(
        Encoding.DER
    ),
    "that may not sign": lambda: FORGE.authority(key_usage=usage(digital_signature=True)).public_bytes(Encoding.DER),
    "signed by another key": lambda: FORGE.authority(signer=SECOND_KEY).public_bytes(Encoding.DER),
}


@pytest.mark.parametrize("kind", WRONG_AUTHORITIES)
def test_every_other_authority_is_refused(kind: str) -> None:
    with pytest.raises(HostileInput):
        load_authority_certificate(WRONG_AUTHORITIES[kind]())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command on this machine")
def test_openssl_agrees_on_the_fingerprint(tmp_path: Path) -> None:
    file = tmp_path / "leaf.der"
    file.write_bytes(REFERENCE)
    command = ["openssl", "x509", "-inform", "DER", "-in", str(file), "-noout", "-pubkey"]
    pem = subprocess.run(command, capture_output=True, check=True).stdout
    der = subprocess.run(["openssl", "pkey", "-pubin", "-outform", "DER"], input=pem, capture_output=True, check=True).stdout
    identity = verify_certificate(REFERENCE, FORGE.ca, NOW, None)
    assert hashlib.sha256(der).hexdigest() == identity.fingerprint
    assert load_der_public_key(der) == identity.public_key


def test_a_certificate_that_is_loaded_has_a_key_that_can_be_read() -> None:
    """Its key is of a kind that is not known, or not a point of its curve, if a byte of it is another one."""
    whole, refused = FORGE.leaf(), 0
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        try:
            loaded = load_certificate(bytes(changed))
        except HostileInput:
            refused += 1
        else:
            loaded.public_key()
    assert 0 < refused < len(whole)
