"""A hospital's own certificate authority with RSA keys, as a TLS server's certificate may come from; not the federation's."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = 86_400


class HospitalAuthority:
    """Issues TLS server certificates for localhost."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(65537, 2048)
        self._certificate = self._sign("Hospital Root", self._key, None, -1, 100, authority=True)

    @property
    def pem(self) -> bytes:
        """Its root."""
        return self._certificate.public_bytes(Encoding.PEM)

    def issue(self, directory: Path, *, days: float = 30, begin: float = -1) -> tuple[Path, Path]:
        """Write certificate and key for localhost; returns their paths."""
        directory.mkdir(exist_ok=True)
        key = rsa.generate_private_key(65537, 2048)
        certificate = self._sign("coordinator.hospital", key, self._certificate, begin, days, authority=False)
        paths = directory / "tls.pem", directory / "tls.key"
        paths[1].touch(0o600)
        paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        paths[0].write_bytes(certificate.public_bytes(Encoding.PEM))
        return paths

    def _sign(
        self,
        name: str,
        key: rsa.RSAPrivateKey,
        issuer: x509.Certificate | None,
        begin: float,
        days: float,
        *,
        authority: bool,
    ) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = time.time()
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if issuer is None else issuer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.fromtimestamp(now + begin * DAY, UTC))
            .not_valid_after(datetime.fromtimestamp(now + days * DAY, UTC))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if not authority:
            names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
            builder = builder.add_extension(names, critical=False).add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
            )
        return builder.sign(self._key, hashes.SHA256())
