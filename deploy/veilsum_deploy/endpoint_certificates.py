"""Certificates of the metrics endpoints of a federation for trying: an authority of their own, and one for each service.

Beside the federation's authority, not under it: who may scrape is another question than who is a member.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from veilsum_node.identity.authority import certificate_builder

DAYS = 825


class EndpointAuthority:
    """Signs the certificates of endpoints; its key lives as long as this object.

    Args:
        now: Unix seconds.
    """

    def __init__(self, now: int) -> None:
        self._valid = now - 300, now - 300 + DAYS * 86400
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "veilsum trial metrics")])
        usage = x509.KeyUsage(
            False, False, False, False, False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False
        )
        self._certificate = (
            certificate_builder(self._name, self._name, self._key.public_key(), *self._valid)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def certificate_pem(self) -> bytes:
        """The authority's own certificate."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, hosts: Sequence[str]) -> tuple[bytes, bytes]:
        """Key and certificate, both PEM, of an endpoint that is asked by these names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = []
        for host in hosts:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
        certificate = (
            certificate_builder(subject, self._name, key.public_key(), *self._valid)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return pem, certificate.public_bytes(serialization.Encoding.PEM)
