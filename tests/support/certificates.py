"""Certificates of every wrong kind, made directly with the cryptographic library: what no authority of ours would sign."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NOW = 1_800_000_000
DAY = 86_400


def now() -> int:
    """A clock that stands still."""
    return NOW


def usage(**bits: bool) -> x509.KeyUsage:
    names = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{name: bits.get(name, False) for name in names})


def subject(*common_names: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in common_names])


class Forge:
    """Signs leaf certificates with one authority's key; everything about them can be set wrong, one thing at a time."""

    def __init__(self, federation: str = "trial", *, not_before: int = NOW - DAY, not_after: int = NOW + 10 * DAY) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.federation = federation
        self.ca = self.authority(not_before=not_before, not_after=not_after)

    def authority(
        self,
        *,
        not_before: int = NOW - DAY,
        not_after: int = NOW + 10 * DAY,
        constraints: x509.BasicConstraints | None = None,
        key_usage: x509.KeyUsage | None = None,
        signer: Any = None,
    ) -> x509.Certificate:
        return (
            x509.CertificateBuilder()
            .subject_name(subject(self.federation))
            .issuer_name(subject(self.federation))
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.fromtimestamp(not_before, UTC))
            .not_valid_after(datetime.fromtimestamp(not_after, UTC))
            .add_extension(constraints or x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(key_usage or usage(key_cert_sign=True, crl_sign=True), critical=True)
            .sign(signer or self.key, hashes.SHA256())
        )

    def leaf(
        self,
        *,
        name: str = "north",
        common_names: Sequence[str] | None = None,
        attributes: Sequence[x509.NameAttribute[str]] = (),
        uris: Sequence[str] | None = None,
        alternatives: Sequence[x509.GeneralName] = (),
        key: Any = None,
        issuer: str | None = None,
        signer: Any = None,
        algorithm: Any = None,
        not_before: int = NOW - 60,
        not_after: int = NOW + DAY,
        constraints: x509.BasicConstraints | None = None,
        key_usage: x509.KeyUsage | None = None,
        extended: Sequence[x509.ObjectIdentifier] = (ExtendedKeyUsageOID.CLIENT_AUTH,),
        omit: Sequence[type[x509.ExtensionType]] = (),
        extra: Sequence[x509.ExtensionType] = (),
    ) -> bytes:
        """A participant's certificate in DER, right unless told otherwise."""
        own = key or ec.generate_private_key(ec.SECP256R1())
        uris = [f"veilsum://{self.federation}/participant/{name}"] if uris is None else uris
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([*subject(*(common_names or (name,))), *attributes]))
            .issuer_name(subject(issuer or self.federation))
            .public_key(own.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.fromtimestamp(not_before, UTC))
            .not_valid_after(datetime.fromtimestamp(not_after, UTC))
        )
        extensions: list[x509.ExtensionType] = [
            constraints or x509.BasicConstraints(ca=False, path_length=None),
            key_usage or usage(digital_signature=True),
            x509.ExtendedKeyUsage(extended),
            x509.SubjectAlternativeName([*(x509.UniformResourceIdentifier(uri) for uri in uris), *alternatives]),
            x509.SubjectKeyIdentifier.from_public_key(own.public_key()),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
            *extra,
        ]
        for extension in extensions:
            if not isinstance(extension, tuple(omit)):
                builder = builder.add_extension(extension, critical=False)
        certificate = builder.sign(signer or self.key, algorithm or hashes.SHA256())
        return certificate.public_bytes(Encoding.DER)
