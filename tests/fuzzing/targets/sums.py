"""Contributions and sums under one-time keys, answers and evidence: what comes from others is refused, or is itself."""

from __future__ import annotations

from fuzzing.targets.base import Corpus
from support.one_time import STUDY, Played, make_members, play, some_vectors
from veilsum_privacy.results.sum_evidence import (
    evidence_from_bytes,
    evidence_to_bytes,
    total_from_bytes,
    total_to_bytes,
    verify_evidence,
)
from veilsum_privacy.securesum.check_words import parse_check
from veilsum_privacy.securesum.opening import open_words


class Sums(Corpus):
    """A round of three members: its sum as bytes and opened, an answer, and the statements of its evidence, verified."""

    name = "sums"
    readers = 4

    def __init__(self) -> None:
        super().__init__()
        members = make_members(3)
        self.played: Played = play(members, some_vectors(members))
        self.evidence = self.played.evidence
        statements, self.total = evidence_to_bytes(self.evidence)
        self.seeds = [[self.total], [self.total], list(self.evidence.checks), [statements]]

    def read(self, reader: int, data: bytes) -> None:
        members = self.played.members
        plan, context = members.plan, members.context
        if reader == 0:
            assert total_to_bytes(total_from_bytes(data, plan), plan) == data
        elif reader == 1:
            words = open_words(total_from_bytes(data, plan), plan, context, members.consents)
            assert int(words.max()) < plan.ring.plain_modulus
        elif reader == 2:
            assert parse_check(data, plan.ring.plain_modulus).to_bytes() == data
        else:
            parsed = evidence_from_bytes(data, self.total)
            found = verify_evidence(parsed, plan, STUDY, context, members.identities, members.coordinator)
            assert found.tolist() == self.played.exact.tolist()
