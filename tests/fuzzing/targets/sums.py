"""Contributions and sums under one-time keys, answers and evidence: what comes from others is refused, or is itself."""

from __future__ import annotations

from fuzzing.targets.base import Corpus
from support.one_time import STUDY, Played, make_members, play, some_vectors
from veilsum_privacy.ledger.receipts import SignedReceipt
from veilsum_privacy.results.proof_files import ReleaseProof
from veilsum_privacy.results.sum_evidence import Held
from veilsum_privacy.results.whole_sums import total_from_bytes, total_to_bytes, verify_evidence
from veilsum_privacy.securesum.check_words import CHECKS, answer_words
from veilsum_privacy.securesum.opening import open_words


class Sums(Corpus):
    """A round of three members: its sum as bytes and opened, an answer, and its proof, verified."""

    name = "sums"
    readers = 4

    def __init__(self) -> None:
        super().__init__()
        members = make_members(3)
        self.played: Played = play(members, some_vectors(members))
        evidence = self.played.evidence
        self.total = evidence.total
        proof = ReleaseProof(
            b"{}", evidence.receipts, SignedReceipt(b"{}", b""), b"", evidence.fixed, evidence.checks, evidence.consents,
            evidence.agreed, evidence.total,
        )  # fmt: skip
        self.seeds = [[self.total], [self.total], list(evidence.checks), [proof.to_bytes()]]

    def read(self, reader: int, data: bytes) -> None:
        members = self.played.members
        plan, context = members.plan, members.context
        if reader == 0:
            assert total_to_bytes(total_from_bytes(data, plan), plan) == data
        elif reader == 1:
            words = open_words(total_from_bytes(data, plan), plan, context, members.consents)
            assert int(words.max()) < plan.ring.plain_modulus
        elif reader == 2:
            said = answer_words(data, plan.ring.plain_modulus)
            assert len(said) == CHECKS
            assert 0 <= min(said) <= max(said) < plan.ring.plain_modulus
        else:
            proof = ReleaseProof.parse(data, self.total)
            assert proof.to_bytes() == data
            held = Held(proof.evidence, members.identities, STUDY, context)
            found = verify_evidence(held, plan, members.coordinator)
            assert found.tolist() == self.played.exact.tolist()
