"""Proofs of results: laid beside them as an analyst's client does, and what a decryptor signs for whatever words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509

from support.federation import TestBed
from veilsum.verification import Verified, verify_result
from veilsum_aggregation.arrays import Integers
from veilsum_coordinator.protocol.rounds import Round
from veilsum_coordinator.results.proof import proof_file
from veilsum_coordinator.storage.journal import SqlJournal
from veilsum_node.canonical import canonical
from veilsum_node.identity import Credentials
from veilsum_participant.site import Site
from veilsum_participant.store.studies import find_study
from veilsum_privacy.ledger import Mechanism, Receipt
from veilsum_privacy.ledger.receipts import (
    Countersignature,
    consent_commitment,
    consent_proof,
    countersign,
    receipts_digest,
    sign_receipt,
)
from veilsum_privacy.results.proof_check import CheckedStudy, ProofFault
from veilsum_privacy.results.proof_files import FOLDER, STUDY_FILE, ReleaseEntry, ReleaseProof, release_digest, round_file
from veilsum_privacy.results.result import MANIFEST
from veilsum_privacy.securesum.context import Assignment, context_digest
from veilsum_privacy.securesum.contribution import Slots, keys_digest, masked_sum
from veilsum_privacy.securesum.decryption import SignedStatement, Statement, sign_statement, words_digest
from veilsum_privacy.tasks.agreed import AgreedStudy


def lay_proof(journal: SqlJournal, directory: Path) -> list[str]:
    """Write the proof of a result from the coordinator's journal; returns the files' names."""
    entries = json.loads((directory / MANIFEST).read_bytes())["releases"]
    names = [STUDY_FILE, *(round_file(entry["round"]) for entry in entries)]
    (directory / FOLDER).mkdir(exist_ok=True)
    for name in names:
        (directory / name).write_bytes(proof_file(journal.database, bytes.fromhex(directory.name), name))
    return names


def proven(journal: SqlJournal, directory: Path, authority: x509.Certificate, uses: Path | None = None) -> Verified:
    """Verify a result by the proof that the journal holds."""
    lay_proof(journal, directory)
    return verify_result(directory, authority, uses=uses)


def signed_words(site: Site, study: bytes, current: Round, words: list[Slots], /, **changes: Any) -> SignedStatement:
    """A member's signed word on a decryption of the present attempt; ``changes`` make it say something else."""
    with site.database.reading() as connection:
        row = find_study(connection, study)
    assert row is not None
    values: dict[str, Any] = {
        "study": study,
        "participant": site.name,
        "round": current.number,
        "attempt": current.assignment.attempt,
        "context": current.context,
        "keys": keys_digest(row.secret_key, row.tag_key),
        "words": words_digest(words),
    }
    return sign_statement(Statement(**(values | changes)), site.credentials.signing_key)


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

    def values(self, name: str, change: Callable[[Integers], object]) -> ReleaseProof:
        """Change the released values in a file."""
        proof = ReleaseProof.parse((self.directory / name).read_bytes())
        change(proof.values)
        (self.directory / name).write_bytes(proof.to_bytes())
        return proof

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
        keys: digest of the dealt keys.
    """

    def __init__(self, bed: TestBed, study: CheckedStudy, keys: bytes) -> None:
        self._bed, self._study, self._keys = bed, study, keys

    def release(
        self,
        number: int,
        attempt: int,
        label: str,
        receipt: int,
        coordinator: Credentials | None = None,
        padded: tuple[bool, bool] = (False, False),
    ) -> tuple[ReleaseEntry, ReleaseProof]:
        """A release of zeros, signed by everyone as if it had been opened.

        Args:
            receipt: number of every receipt.
            padded: whether each of the two decryptors signs for the words of protocol version 3.
        """
        checked, study = self._study, self._study.study
        names, signer = checked.roster.names, coordinator or self._bed.hub.credentials
        cohort = tuple((name, bytes(16)) for name in names)
        assignment = Assignment(number, attempt, label, cohort, bytes(32), study.expires)
        plan = AgreedStudy(study).task(label).plan(len(names), len(names))
        context = context_digest(plan, checked.roster, self._keys, assignment)
        consents = tuple(hashlib.sha256(name.encode()).digest() for name in names)
        receipts = tuple(
            sign_receipt(
                Receipt(
                    checked.digest, name, number, attempt, context, bytes(32), receipt, bytes(32), study.dataset,
                    Mechanism.of(plan.declaration, plan.noise), study.privacy.unit, len(names),
                    consent_commitment(consent_proof(consent)),
                ),
                self._bed.sites[name].credentials.signing_key,
            )
            for name, consent in zip(names, consents, strict=True)
        )  # fmt: skip
        word = Countersignature(
            checked.digest, signer.identity.name, number, attempt, context, receipts_digest(receipts), number, bytes(32)
        )
        values = np.zeros(plan.encoding.size, dtype=np.int64)
        words = [words_digest(masked_sum(values, plan.encoding, consents, padded=each)) for each in padded]
        said = {
            name: Statement(checked.digest, name, number, attempt, context, self._keys, form)
            for name, form in zip(names[:2], words, strict=True)
        }
        signatures = {
            name: sign_statement(item, self._bed.sites[name].credentials.signing_key).signature for name, item in said.items()
        }
        digest = release_digest(checked.digest, number, attempt, values.astype("<i8").tobytes())
        proof = ReleaseProof(
            assignment.to_bytes(), self._keys, receipts, countersign(word, signer.signing_key), signer.identity.certificate,
            consents, values,
        )  # fmt: skip
        return ReleaseEntry(number, label, digest, signatures), proof
