"""Proofs of results: laid beside them as an analyst's client does, and what a decryptor signs for whatever words."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from veilsum_coordinator.journal import SqlJournal
from veilsum_coordinator.proving import proof_file
from veilsum_coordinator.rounds import Round
from veilsum_deploy.verifying import Verified, verify_result
from veilsum_participant import store
from veilsum_participant.site import Site
from veilsum_privacy.canonical import canonical
from veilsum_privacy.database import reading
from veilsum_privacy.proof.checking import ProofFault
from veilsum_privacy.proof.files import FOLDER, STUDY_FILE, Integers, ReleaseProof, round_file
from veilsum_privacy.results import MANIFEST
from veilsum_privacy.securesum.contribution import Slots, keys_digest
from veilsum_privacy.securesum.decryption import SignedStatement, Statement, sign_statement, words_digest


def lay_proof(journal: SqlJournal, directory: Path) -> list[str]:
    """Write the proof of a result from the coordinator's journal; returns the files' names."""
    entries = json.loads((directory / MANIFEST).read_bytes())["releases"]
    names = [STUDY_FILE, *(round_file(entry["round"]) for entry in entries)]
    (directory / FOLDER).mkdir(exist_ok=True)
    for name in names:
        (directory / name).write_bytes(proof_file(journal, bytes.fromhex(directory.name), name))
    return names


def proven(journal: SqlJournal, directory: Path, authority: x509.Certificate, uses: Path | None = None) -> Verified:
    """Verify a result by the proof that the journal holds."""
    lay_proof(journal, directory)
    return verify_result(directory, authority, uses=uses)


def signed_words(site: Site, study: bytes, current: Round, words: list[Slots], /, **changes: Any) -> SignedStatement:
    """A member's signed word on a decryption of the present attempt; ``changes`` make it say something else."""
    with reading(site.engine) as connection:
        row = store.find_study(connection, study)
    assert row is not None
    values: dict[str, Any] = {
        "study": study,
        "participant": site.name,
        "round": current.number,
        "attempt": current.assignment.attempt,
        "context": current.context,
        "keys": keys_digest(row["secret_key"], row["tag_key"]),
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
