"""What a party asks the federation's authority to sign; the key of each request stays where it is made."""

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from veilsum_node.errors import Misuse
from veilsum_node.identity.certificate import NAME_PATTERN, Role
from veilsum_node.identity.signatures import SigningKey

PEOPLE = (Role.ANALYST, Role.OPERATOR)
"""Roles that a login may be certified for: no site and no coordinator ever logs in."""

LONGEST_LOGIN = 7 * 86_400
"""Seconds that a login's certificate is valid at most: nothing revokes it but its end."""

BACKDATE = 300
"""Seconds by which certificates begin earlier: a site's clock may be a little behind the authority's."""


def new_key_and_csr(name: str, role: Role) -> tuple[bytes, bytes]:
    """Make a private key and a request for a certificate, at the site that will use them.

    Returns:
        The private key and the request, both in PEM. The request states name and role for the authority's operator to see.

    Raises:
        Misuse: ``name`` is not a name.
    """
    check_name(name, "name")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, name), x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role.value)]
    )
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return SigningKey(key).to_pem(), request.public_bytes(Encoding.PEM)


def login_request(role: Role) -> tuple[SigningKey, bytes]:
    """A fresh key and a request (PEM) that states a role and no name: the name is the identity provider's to say."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role.value)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return SigningKey(key), request.public_bytes(Encoding.PEM)


def check_name(name: str, what: str) -> None:
    """Insist on a party's or a federation's name.

    Raises:
        Misuse: it is not one.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise Misuse(
            f"The {what} {name!r} is not valid.",
            "Use 1 to 64 of the characters a-z, 0-9, '.', '_' and '-', beginning and ending with a letter or digit.",
        )
