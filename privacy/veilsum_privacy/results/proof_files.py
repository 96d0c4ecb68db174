"""The files of a proof: canonical JSON, in which nothing can be written in two ways.

Signed bodies stand in it as the text that was signed, signatures, keys and certificates (DER) as hexadecimal digits. The
sum of a round, as large as a contribution, is a file of its own, as it was added up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from veilsum_node.canonical import canonical, parse_canonical
from veilsum_node.errors import HostileInput
from veilsum_privacy.results.release_names import FOLDER, round_file

if TYPE_CHECKING:
    from veilsum_privacy.ledger.receipts import SignedReceipt
    from veilsum_privacy.results.sum_evidence import Evidence
    from veilsum_privacy.securesum.check_words import Signed
    from veilsum_privacy.securesum.roster import Enrolment

STUDY_FILE = f"{FOLDER}/study.json"

_ROUND_FILE = re.compile(rf"{FOLDER}/round-(\d{{6,15}})\.(json|sum)")


def sum_file(number: int) -> str:
    """The file of a round's sum, below the result's directory; results of version 5 of the protocol and before have none."""
    return f"{FOLDER}/round-{number:06d}.sum"


def round_of(name: str) -> int | None:
    """The round of whose proof a file of this name is a part; None for any other name."""
    found = _ROUND_FILE.fullmatch(name)
    number = 0 if found is None else int(found[1])
    return number if number and name in (round_file(number), sum_file(number)) else None


@dataclass(frozen=True)
class ReleaseEntry:
    """What a result's manifest says of a release that it was made of.

    Attributes:
        digest: :func:`.release_digest`.
        decrypted_by: signatures on what a sum was decrypted to, by name; up to version 5 of the protocol.
    """

    round: int
    label: str
    digest: bytes
    decrypted_by: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def files(self) -> list[str]:
        """Names of the files that prove it."""
        return [round_file(self.round)] if self.decrypted_by else [round_file(self.round), sum_file(self.round)]

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        signatures = {name: signature.hex() for name, signature in self.decrypted_by.items()}
        former = {"decrypted_by": signatures} if signatures else {}
        return {"round": self.round, "label": self.label, "digest": self.digest.hex(), **former}

    @classmethod
    def parse(cls, value: Any) -> ReleaseEntry:
        """Read an entry.

        Raises:
            HostileInput: malformed, or written in another way than :meth:`to_json` does.
        """
        try:
            signatures = {str(name): bytes.fromhex(text) for name, text in value.get("decrypted_by", {}).items()}
            entry = cls(value["round"], value["label"], bytes.fromhex(value["digest"]), signatures)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise HostileInput("A release in it is malformed.") from error
        if type(entry.round) is not int or not isinstance(entry.label, str) or entry.to_json() != value:
            raise HostileInput("A release in it is malformed.")
        return entry


def read_entries(manifest: Mapping[str, Any]) -> list[ReleaseEntry]:
    """The releases that a manifest names with a proof; none in checkpoints and results of simulations or software before 0.2.

    Raises:
        HostileInput: malformed.
    """
    items = manifest.get("releases") or ()
    if not isinstance(items, Sequence):
        raise HostileInput("Its releases are malformed.")
    if any(isinstance(item, dict) and item.get("decrypted_by") == {} for item in items):  # as software before 0.2 wrote them
        return []
    return [ReleaseEntry.parse(item) for item in items]


@dataclass(frozen=True)
class StudyProof:
    """The signed study and its roster.

    Attributes:
        study: the exact bytes that the analyst signed.
        analyst: its certificate, DER.
        enrolments: of the roster, in its order.
    """

    study: bytes
    signature: bytes
    analyst: bytes
    enrolments: tuple[Enrolment, ...]

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        roster = [[item.certificate, item.body.decode(), item.signature] for item in self.enrolments]
        return canonical(
            {"v": 1, "study": self.study.decode(), "signature": self.signature, "analyst": self.analyst, "roster": roster}
        )

    @classmethod
    def parse(cls, data: bytes) -> StudyProof:
        """Parse the file; nothing of it is verified.

        Raises:
            HostileInput: malformed.
        """
        from veilsum_privacy.securesum.roster import Enrolment  # with certificates, for who reads proofs

        value = parse_canonical(data, what="file")
        try:
            roster = tuple(
                Enrolment(bytes.fromhex(certificate), body.encode(), bytes.fromhex(signature))
                for certificate, body, signature in value["roster"]
            )
            signed = bytes.fromhex(value["signature"]), bytes.fromhex(value["analyst"])
            return _exactly(cls(value["study"].encode(), *signed, roster), data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise HostileInput("It is malformed.") from error


@dataclass(frozen=True)
class ReleaseProof:
    """What shows that one release was opened as it should; the released values follow from it.

    Attributes:
        assignment: canonical JSON.
        receipts: of the cohort, in its order.
        countersigned: the coordinator's word on them.
        coordinator: its certificate, DER.
        fixed: the coordinator's word on the sum's digest.
        checks: bodies of all members' answers, in the cohort's order.
        consents: of the cohort, in its order.
        agreed: every member's signature under its consent statement, in the cohort's order.
        total: the sum as it travels (:func:`~veilsum_privacy.results.whole_sums.total_to_bytes`); a file of its own.
    """

    assignment: bytes
    receipts: tuple[SignedReceipt, ...]
    countersigned: SignedReceipt
    coordinator: bytes
    fixed: Signed
    checks: tuple[bytes, ...] = field(repr=False)
    consents: tuple[bytes, ...] = field(repr=False)
    agreed: tuple[bytes, ...] = field(repr=False)
    total: bytes = field(repr=False)

    def to_bytes(self) -> bytes:
        """Canonical JSON of everything but the sum."""
        return canonical(
            {
                "v": 6,
                "assignment": self.assignment.decode(),
                "receipts": [signed_pair(item) for item in self.receipts],
                "countersigned": signed_pair(self.countersigned),
                "coordinator": self.coordinator,
                "fixed": signed_pair(self.fixed),
                "checks": [body.decode() for body in self.checks],
                "consents": self.consents,
                "agreed": self.agreed,
            }
        )

    @classmethod
    def parse(cls, data: bytes, total: bytes) -> ReleaseProof:
        """Parse the file; nothing of it is verified.

        Args:
            data: of :func:`round_file`.
            total: of :func:`sum_file`.

        Raises:
            HostileInput: malformed.
        """
        from veilsum_privacy.ledger.receipts import SignedReceipt
        from veilsum_privacy.securesum.check_words import Signed

        value = parse_canonical(data, what="file")
        try:
            proof = cls(
                value["assignment"].encode(),
                tuple(SignedReceipt(*read_pair(item)) for item in value["receipts"]),
                SignedReceipt(*read_pair(value["countersigned"])),
                bytes.fromhex(value["coordinator"]),
                Signed(*read_pair(value["fixed"])),
                tuple(body.encode() for body in value["checks"]),
                tuple(bytes.fromhex(item) for item in value["consents"]),
                tuple(bytes.fromhex(item) for item in value["agreed"]),
                total,
            )
            return _exactly(proof, data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise HostileInput("It is malformed.") from error

    @property
    def evidence(self) -> Evidence:
        """The part of it that a sum's context, cohort and coordinator are held to."""
        # with the encryption, which whoever only fetches files does not need
        from veilsum_privacy.results.sum_evidence import Evidence

        return Evidence(self.receipts, self.total, self.fixed, self.checks, self.consents, self.agreed)


Proof = TypeVar("Proof", StudyProof, ReleaseProof)


def _exactly(proof: Proof, data: bytes) -> Proof:
    if proof.to_bytes() != data:
        raise ValueError("not in canonical form")
    return proof


def signed_pair(item: SignedReceipt | Signed) -> Sequence[str]:
    """A signed text with its signature, as JSON values."""
    return [item.body.decode(), item.signature.hex()]


def read_pair(value: Sequence[str]) -> tuple[bytes, bytes]:
    """The text and signature of :func:`signed_pair`.

    Raises:
        AttributeError, TypeError, ValueError: malformed.
    """
    body, signature = value
    return body.encode(), bytes.fromhex(signature)
