"""Identities: the authority, certificates and roles, labelled signatures, and the credentials of mutual TLS.

Names are looked up when they are asked for: a party has no use for the authority's side, and who names a file none for keys.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veilsum_node.identity.authority import DEFAULT_DAYS, Authority
    from veilsum_node.identity.certificate import (
        CertificateExpired,
        Identity,
        Role,
        federation_id,
        federation_name,
        key_fingerprint,
        load_authority_certificate,
        verify_certificate,
    )
    from veilsum_node.identity.record import Issued, IssuedRecord
    from veilsum_node.identity.requests import new_key_and_csr
    from veilsum_node.identity.signatures import Label, SigningKey, hello_digest, verify
    from veilsum_node.identity.tls import Credentials, load_credentials

_WHERE = {
    "DEFAULT_DAYS": "authority", "Authority": "authority", "CertificateExpired": "certificate", "Credentials": "tls",
    "Identity": "certificate", "Issued": "record", "IssuedRecord": "record", "Label": "signatures", "Role": "certificate",
    "SigningKey": "signatures", "federation_id": "certificate", "federation_name": "certificate", "hello_digest": "signatures",
    "key_fingerprint": "certificate", "load_authority_certificate": "certificate", "load_credentials": "tls",
    "new_key_and_csr": "requests", "verify": "signatures", "verify_certificate": "certificate",
}  # fmt: skip
"""The module of each name."""

__all__ = [
    "DEFAULT_DAYS", "Authority", "CertificateExpired", "Credentials", "Identity", "Issued", "IssuedRecord", "Label", "Role",
    "SigningKey", "federation_id", "federation_name", "hello_digest", "key_fingerprint", "load_authority_certificate",
    "load_credentials", "new_key_and_csr", "verify", "verify_certificate",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
