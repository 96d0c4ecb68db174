"""Proofs of results: laid beside them as an analyst's client does, changed, and made by those who hold everybody's keys."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509

from support.federation import TestBed
from support.ledgers import any_receipt
from support.one_time import Members, Played
from support.randomness import SeededRandom
from veilsum.verification import Verified, verify_result
from veilsum_aggregation.arrays import Integers
from veilsum_coordinator.results.proof import proof_file
from veilsum_coordinator.storage.journal import SqlJournal
from veilsum_node.canonical import canonical
from veilsum_node.identity import Credentials, Label, SigningKey
from veilsum_privacy.ledger import Mechanism
from veilsum_privacy.ledger.countersigning import countersign
from veilsum_privacy.ledger.receipts import (
    Countersignature,
    SignedReceipt,
    consent_proof,
    parse_receipt,
    receipts_digest,
    sign_receipt,
)
from veilsum_privacy.results.former.layout import former_context, former_plan
from veilsum_privacy.results.former.proof import FormerReleaseProof
from veilsum_privacy.results.former.words import Statement, masked_sum, words_digest
from veilsum_privacy.results.proof_check import CheckedStudy, ProofFault
from veilsum_privacy.results.proof_files import STUDY_FILE, ReleaseEntry, ReleaseProof, read_entries, sum_file
from veilsum_privacy.results.release_names import FOLDER, release_digest, round_file
from veilsum_privacy.results.result import MANIFEST
from veilsum_privacy.securesum.context import Assignment, broadcast_digest, context_digest
from veilsum_privacy.tasks.agreed import AgreedStudy, RoundPlan


def lay_proof(journal: SqlJournal, directory: Path) -> list[str]:
    """Write the proof of a result from the coordinator's journal; returns the files' names."""
    entries = read_entries(json.loads((directory / MANIFEST).read_bytes()))
    names = [STUDY_FILE, *(name for entry in entries for name in entry.files)]
    (directory / FOLDER).mkdir(exist_ok=True)
    for name in names:
        (directory / name).write_bytes(proof_file(journal.database, bytes.fromhex(directory.name), name))
    return names


def proven(journal: SqlJournal, directory: Path, authority: x509.Certificate, uses: Path | None = None) -> Verified:
    """Verify a result by the proof that the journal holds."""
    lay_proof(journal, directory)
    return verify_result(directory, authority, uses=uses)


@dataclass(frozen=True)
class Copied:
    """A result that a test changes."""

    directory: Path
    authority: x509.Certificate

    def json(self, name: str) -> Any:
        return json.loads((self.directory / name).read_bytes())

    def write(self, name: str, value: Any) -> None:
        """A file of the proof, or the manifest, as its own writer writes it."""
        manifest = json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n" if name == MANIFEST else b""
        (self.directory / name).write_bytes(manifest or canonical(value))

    def change(self, name: str, *path: Any, to: Callable[[Any], Any]) -> None:
        """Change one value of a file."""
        whole = place = self.json(name)
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = to(place[path[-1]])
        self.write(name, whole)

    def proof(self, number: int) -> ReleaseProof:
        """Of a round."""
        return ReleaseProof.parse(*((self.directory / name).read_bytes() for name in (round_file(number), sum_file(number))))

    def write_proof(self, number: int, proof: ReleaseProof) -> None:
        """Put another proof of a round in its place."""
        (self.directory / round_file(number)).write_bytes(proof.to_bytes())
        (self.directory / sum_file(number)).write_bytes(proof.total)

    def fault(self) -> ProofFault:
        """The first thing that is found wrong."""
        with pytest.raises(ProofFault) as caught:
            verify_result(self.directory, self.authority)
        return caught.value


class Conspiracy:
    """A coordinator and all members of a study together: they can sign for anything.

    Args:
        bed: whose keys they hold.
        study: checked.
    """

    def __init__(self, bed: TestBed, study: CheckedStudy) -> None:
        self._bed, self._study = bed, study
        self._keys = {name: site.credentials.signing_key for name, site in bed.sites.items()}

    def round(self, number: int, attempt: int, label: str, receipt: int, coordinator: Credentials | None = None) -> Signing:
        """A round of zeros in which everyone keeps the order of the steps.

        Args:
            receipt: number of every receipt.
        """
        signer = coordinator or self._bed.hub.credentials
        assignment, plan = self._assigned(number, attempt, label)
        names, lead = assignment.names, signer.identity.name
        context = context_digest(plan, self._study.roster, assignment)
        random = SeededRandom(f"round {number} {attempt}".encode())
        pairs = {frozenset((a, b)): random.bytes(32) for a in names for b in names if a < b}
        selves = {name: random.bytes(32) for name in names}
        keys = {**self._keys, lead: signer.signing_key}
        about = self._study.digest, number, attempt
        members = Members(plan.encoding, names, pairs, selves, context, random, *about, keys, lead)
        sent = [members.contribute(name, np.zeros(plan.encoding.size, dtype=np.int64)) for name in names]
        described = self._described(plan, receipt)
        receipts = [members.receipt(name, one.contribution, **described) for name, one in zip(names, sent, strict=True)]
        return Signing(Played(members, sent, members.add(sent), receipts), assignment, label, signer.identity.certificate)

    def former_release(
        self, number: int, attempt: int, label: str, receipt: int, padded: tuple[bool, bool] = (False, False)
    ) -> tuple[ReleaseEntry, FormerReleaseProof]:
        """A release of zeros up to version 5 of the protocol, signed by everyone as if it had been opened.

        Args:
            receipt: number of every receipt.
            padded: whether each of the two decryptors signs for the words of version 3.
        """
        checked, signer, keys = self._study, self._bed.hub.credentials, bytes(range(32))
        assignment, plan = self._assigned(number, attempt, label)
        names = assignment.names
        former = former_plan(plan.task, len(names), len(names))
        context = former_context(former, checked.roster, keys, assignment)
        consents = tuple(hashlib.sha256(name.encode()).digest() for name in names)
        receipts = []
        for name, consent in zip(names, consents, strict=True):
            promised = {"consent": hashlib.sha256(consent_proof(consent)).digest(), "version": 1, "context": context}
            about = {"round": number, "attempt": attempt, **self._described(plan, receipt), **promised}
            receipts.append(sign_receipt(any_receipt(checked.digest, name, **about), self._keys[name]))
        values = np.zeros(former.encoding.size, dtype=np.int64)
        signatures = {}
        for name, form in zip(names[:2], padded, strict=True):
            words = words_digest(masked_sum(values, former.encoding, consents, padded=form))
            said = Statement(checked.digest, name, number, attempt, context, keys, words)
            signatures[name] = self._keys[name].sign(Label.DECRYPTION, said.to_bytes())
        word = countersigned(signer.signing_key, signer.identity.name, checked.digest, receipts)
        proof = FormerReleaseProof(
            assignment.to_bytes(), keys, tuple(receipts), word, signer.identity.certificate, consents, values
        )
        digest = release_digest(checked.digest, number, attempt, values.tobytes())
        return ReleaseEntry(number, label, digest, signatures), proof

    def _assigned(self, number: int, attempt: int, label: str) -> tuple[Assignment, RoundPlan]:
        study, names = self._study.study, self._study.roster.names
        cohort, nothing = tuple((name, bytes(16)) for name in names), broadcast_digest(b"")
        assignment = Assignment(number, attempt, label, cohort, nothing, study.expires)
        return assignment, AgreedStudy(study).task(label).plan(len(names), len(names))

    def _described(self, plan: RoundPlan, number: int) -> dict[str, Any]:
        study = self._study.study
        mechanism = Mechanism.of(plan.declaration, plan.noise)
        about = {"mechanism": mechanism, "dataset": study.dataset, "unit": study.privacy.unit}
        return {"number": number, "cohort_size": len(self._study.roster.names), **about}


@dataclass
class Signing:
    """A round, and how it is shown.

    Attributes:
        played: the round.
        assignment: of it.
        label: of its task.
        certificate: the coordinator's.
    """

    played: Played
    assignment: Assignment
    label: str
    certificate: bytes

    @property
    def proof(self) -> ReleaseProof:
        """What they signed."""
        played, shown = self.played, self.played.evidence
        members = played.members
        word = countersigned(members.key(members.lead), members.lead, members.study, shown.receipts)
        return ReleaseProof(
            self.assignment.to_bytes(), shown.receipts, word, self.certificate, shown.fixed, shown.checks, shown.consents,
            shown.agreed, shown.total,
        )  # fmt: skip

    @property
    def release(self) -> tuple[ReleaseEntry, ReleaseProof]:
        """The release of what was contributed."""
        return self.entry(self.played.exact), self.proof

    def entry(self, values: Integers) -> ReleaseEntry:
        """What a manifest says of a release of these values."""
        number, attempt = self.assignment.round, self.assignment.attempt
        digest = release_digest(self.played.members.study, number, attempt, values.astype("<i8").tobytes())
        return ReleaseEntry(number, self.label, digest)


def countersigned(key: SigningKey, name: str, study: bytes, receipts: Sequence[SignedReceipt]) -> SignedReceipt:
    """A coordinator's word on these receipts."""
    first = parse_receipt(receipts[0].body)
    about = study, name, first.round, first.attempt, first.context
    return countersign(Countersignature(*about, receipts_digest(receipts), first.round, bytes(32)), key)
