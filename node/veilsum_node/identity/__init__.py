"""Identities: the authority, certificates and roles, labelled signatures, and the credentials of mutual TLS."""

from veilsum_node.identity.authority import DEFAULT_DAYS, Authority, new_key_and_csr
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
from veilsum_node.identity.signatures import Label, SigningKey, hello_digest, verify
from veilsum_node.identity.tls import Credentials, load_credentials

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
