"""Signatures: right ones verify, nothing else does, and no key is printed."""

from __future__ import annotations

import pickle
import shutil
import subprocess
from itertools import permutations
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from veilsum_node.errors import ConfigurationError, HostileInput
from veilsum_node.identity import Label, SigningKey, verify

KEY = SigningKey.generate()
OTHER = SigningKey.generate()


@given(data=st.binary(max_size=200), label=st.sampled_from(list(Label)))
@settings(deadline=None)
def test_what_is_signed_verifies(data: bytes, label: Label) -> None:
    verify(KEY.public_key, label, data, KEY.sign(label, data))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("signed", "checked"), list(permutations(Label, 2)))
def test_a_signature_serves_one_label(signed: Label, checked: Label) -> None:
    signature = KEY.sign(signed, b"data")
    with pytest.raises(HostileInput, match=checked.value):
        verify(KEY.public_key, checked, b"data", signature)


SIGNATURE = KEY.sign(Label.RECEIPT, b"receipt")


@given(position=st.integers(0, len(SIGNATURE) - 1), change=st.integers(1, 255))
@settings(deadline=None)
def test_a_changed_signature_is_refused(position: int, change: int) -> None:
    signature = bytearray(SIGNATURE)
    signature[position] ^= change
    with pytest.raises(HostileInput):
        verify(KEY.public_key, Label.RECEIPT, b"receipt", bytes(signature))


@given(signature=st.binary(max_size=100))
@settings(deadline=None)
def test_noise_is_refused(signature: bytes) -> None:
    with pytest.raises(HostileInput):
        verify(KEY.public_key, Label.RECEIPT, b"receipt", signature)


def test_changed_data_and_another_key_are_refused() -> None:
    with pytest.raises(HostileInput):
        verify(KEY.public_key, Label.RECEIPT, b"receipt!", SIGNATURE)
    with pytest.raises(HostileInput):
        verify(OTHER.public_key, Label.RECEIPT, b"receipt", SIGNATURE)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command on this machine")
def test_openssl_verifies_the_length_prefixed_bytes(tmp_path: Path) -> None:
    data = b"the study"
    message = b"".join(len(part).to_bytes(8, "big") + part for part in (b"veilsum/1/study", data))
    (tmp_path / "message").write_bytes(message)
    (tmp_path / "signature").write_bytes(KEY.sign(Label.STUDY, data))
    (tmp_path / "key.pem").write_bytes(KEY.public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    command = ["openssl", "dgst", "-sha256", "-verify", "key.pem", "-signature", "signature", "message"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 0


def test_a_key_goes_through_pem() -> None:
    again = SigningKey.from_pem(KEY.to_pem())
    assert again.fingerprint == KEY.fingerprint != OTHER.fingerprint
    verify(KEY.public_key, Label.LEDGER, b"entry", again.sign(Label.LEDGER, b"entry"))


def test_no_key_is_printed_or_pickled() -> None:
    secret = KEY.to_pem().decode().splitlines()[1]
    scalar = KEY._key.private_numbers().private_value  # the test must know what must not show
    for text in (repr(KEY), str(KEY), f"{KEY!r:>200}"):
        assert secret not in text
        assert str(scalar) not in text
        assert f"{scalar:x}" not in text
    with pytest.raises(TypeError):
        pickle.dumps(KEY)


def pem_of(key: object) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"not a key",
        pem_of(rsa.generate_private_key(65537, 2048)),
        pem_of(ec.generate_private_key(ec.SECP384R1())),
        KEY.public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        KEY.to_pem()[:-40],
    ],
)
def test_what_is_no_p256_key_is_refused(pem: bytes) -> None:
    with pytest.raises(ConfigurationError):
        SigningKey.from_pem(pem)
