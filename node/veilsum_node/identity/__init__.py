"""Identities: the authority, certificates and roles, labelled signatures, and the credentials of mutual TLS."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from veilsum_node.identity.signatures import Label, SigningKey, hello_digest, verify
from veilsum_node.identity.tls import Credentials, load_credentials

if TYPE_CHECKING:
    from veilsum_node.identity.authority import DEFAULT_DAYS, Authority
    from veilsum_node.identity.record import Issued, IssuedRecord
    from veilsum_node.identity.requests import new_key_and_csr

__all__ = [
    "DEFAULT_DAYS",
    "Authority",
    "CertificateExpired",
    "Credentials",
    "Identity",
    "Issued",
    "IssuedRecord",
    "Label",
    "Role",
    "SigningKey",
    "federation_id",
    "federation_name",
    "hello_digest",
    "key_fingerprint",
    "load_authority_certificate",
    "load_credentials",
    "new_key_and_csr",
    "verify",
    "verify_certificate",
]


def __getattr__(name: str) -> Any:
    """Import the authority's side, and what is asked of it, only when it is wanted: a running party has no use for either."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = {"Issued": "record", "IssuedRecord": "record", "new_key_and_csr": "requests"}.get(name, "authority")
    return getattr(import_module(f"{__name__}.{module}"), name)
