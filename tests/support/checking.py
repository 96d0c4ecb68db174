"""A cohort of real sites that a test takes through a round call by call, the coordinator's part played by the test.

Unlike the adversary of :mod:`support.hostile` it speaks to the sites' protocol itself, so that a refusal is an exception and
a test can crash a site between two writes.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from support.federation import TestBed, make_bed, make_data, make_request, open_test_site, schema_of
from support.shown import shown_of
from veilsum_aggregation.arrays import Integers
from veilsum_node.canonical import canonical, parse_canonical
from veilsum_node.identity import Credentials
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_participant.protocol.approval import SignedStudy
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.protocol.openings import Consent, Shown
from veilsum_participant.protocol.payloads import Payload
from veilsum_participant.store.attempts import AttemptRow, find_attempt
from veilsum_privacy.ledger import Kind
from veilsum_privacy.ledger.countersigning import countersign
from veilsum_privacy.ledger.receipts import Countersignature, Receipt, SignedReceipt, parse_receipt, receipts_digest
from veilsum_privacy.results.whole_sums import total_from_bytes
from veilsum_privacy.securesum.check_words import CheckAnswer, Signed, SumStatement, challenge, verify_check_words
from veilsum_privacy.securesum.context import Assignment, broadcast_digest
from veilsum_privacy.securesum.contributions import Contribution
from veilsum_privacy.securesum.opening import Total, open_words, unmask_values
from veilsum_privacy.securesum.sum_plan import OneTimePlan
from veilsum_privacy.study.study import Study, parse_study, study_digest
from veilsum_privacy.tasks.agreed import AgreedStudy

NAMES = ("a", "b", "c", "d")
LABEL = "statistics"


@dataclass
class Cohort:
    """Sites and their honest, or not so honest, coordinator.

    Attributes:
        bed: the parties.
        study: statistics with ten releases, unless another is given.
        cores: of the sites.
        payloads: what the sites uploaded, by name and attempt.
        assignments: by attempt.
    """

    bed: TestBed
    study: Study
    cores: dict[str, ParticipantCore] = field(init=False)
    payloads: dict[tuple[str, int], Payload] = field(init=False, default_factory=dict)
    assignments: dict[int, Assignment] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.cores = {name: ParticipantCore(site) for name, site in self.bed.sites.items()}
        self._entries = itertools.count(1)

    @cached_property
    def key(self) -> bytes:
        return study_digest(self.study.to_bytes())

    def set_up(self) -> None:
        """Enrolment and the exchange of seeds."""
        signed = self.bed.signed(self.study)
        made = {
            name: core.membership.on_study(
                self.key, SignedStudy(signed.study, signed.signature, signed.certificate, "coordinator")
            )
            for name, core in sorted(self.cores.items())
        }
        enrolments = [item for item in made.values() if item is not None]
        assert len(enrolments) == len(made)
        boxes = [box for core in self.cores.values() for box in core.membership.on_roster(self.key, enrolments)]
        for name, core in self.cores.items():
            core.membership.on_boxes(self.key, [box for box in boxes if box.recipient == name])

    def plan(self, attempt: int = 1) -> OneTimePlan:
        task = AgreedStudy(self.study).task(LABEL)
        return task.plan(len(self.cores), len(self.assignments[attempt].cohort)).encoding

    def assign(self, names: Iterable[str] = NAMES, number: int = 1, attempt: int = 1, **changes: Any) -> Assignment:
        """An assignment for these members, with their present nonces."""
        values: dict[str, Any] = {
            "round": number,
            "attempt": attempt,
            "label": LABEL,
            "cohort": tuple((name, self.bed.sites[name].nonce) for name in names),
            "broadcast": broadcast_digest(b""),
            "deadline": self.bed.clock.now + 3600,
        }
        self.assignments[attempt] = Assignment(**(values | changes))
        return self.assignments[attempt]

    def contribute(self, name: str, attempt: int = 1) -> Payload:
        """Let one site answer the assignment; keeps its payload."""
        payload = self.cores[name].contributions.on_assignment(self.key, self.assignments[attempt], b"")
        self.payloads[name, attempt] = payload
        return payload

    def collect(self, names: Iterable[str] = NAMES, number: int = 1, attempt: int = 1) -> None:
        """An attempt up to the receipts."""
        for name in self.assign(names, number, attempt).names:
            self.contribute(name, attempt)

    def receipts(self, attempt: int = 1) -> list[SignedReceipt]:
        return [self.payloads[name, attempt].receipt for name in self.assignments[attempt].names]

    def context(self, attempt: int = 1) -> bytes:
        return self.receipt(attempt).context

    def receipt(self, attempt: int = 1, name: str = "a") -> Receipt:
        return parse_receipt(self.payloads[name, attempt].receipt.body)

    def contribution(self, name: str, attempt: int = 1) -> Contribution:
        return total_from_bytes(b"".join(self.payloads[name, attempt].pieces), self.plan(attempt))

    def total(self, attempt: int = 1) -> Contribution:
        """The true sum."""
        total = Total(self.plan(attempt))
        for name in self.assignments[attempt].names:
            total.add(self.contribution(name, attempt))
        return total.contribution

    def countersigned(
        self, shown: Sequence[SignedReceipt], of: int = 1, signer: Credentials | None = None, **changes: Any
    ) -> SignedReceipt:
        """The coordinator's word on receipts; ``signer`` and ``changes`` make it wrong."""
        values: dict[str, Any] = {
            "study": self.key,
            "coordinator": "coordinator",
            "round": self.assignments[of].round,
            "attempt": of,
            "context": self.context(of),
            "receipts": receipts_digest(shown),
            "entry": next(self._entries),
            "head": bytes(32),
        }
        return countersign(Countersignature(**(values | changes)), (signer or self.bed.hub.credentials).signing_key)

    def fixed(self, fixed: bytes | None = None, of: int = 1, signer: Credentials | None = None, **changes: Any) -> Signed:
        """The coordinator's word on a sum, the true one by default."""
        values: dict[str, Any] = {
            "study": self.key,
            "coordinator": "coordinator",
            "round": self.assignments[of].round,
            "attempt": of,
            "context": self.context(of),
            "sum": fixed or self.total(of).digest(self.plan(of), self.context(of)),
        }
        return SumStatement(**(values | changes)).sign((signer or self.bed.hub.credentials).signing_key)

    def shown(self, attempt: int = 1, **changes: Any) -> Shown:
        """What an honest coordinator shows, with changes."""
        receipts = changes.pop("receipts", None) or self.receipts(attempt)
        word = changes.pop("countersigned", None) or self.countersigned(receipts, attempt)
        fixed = changes.pop("fixed", None) or self.fixed(of=attempt)
        return shown_of(receipts, word, fixed, self.bed.hub.credentials.identity.certificate)._replace(**changes)

    def answer(self, name: str, shown: Shown | None = None, attempt: int = 1, number: int | None = None) -> CheckAnswer:
        """Let one site check what is shown."""
        round_number = self.assignments[attempt].round if number is None else number
        openings = self.cores[name].openings
        return openings.on_fixed(self.key, round_number, attempt, shown or self.shown(attempt))

    def answers(self, attempt: int = 1, shown: Shown | None = None) -> list[CheckAnswer]:
        """Everyone's answers to one question."""
        asked = shown or self.shown(attempt)
        return [self.answer(name, asked, attempt) for name in self.assignments[attempt].names]

    def consent(self, name: str, answers: Sequence[CheckAnswer], attempt: int = 1, number: int | None = None) -> Consent:
        """Show answers to one site."""
        round_number = self.assignments[attempt].round if number is None else number
        return self.cores[name].openings.on_answers(self.key, round_number, attempt, answers)

    def consents(self, answers: Sequence[CheckAnswer], attempt: int = 1) -> list[Consent]:
        """Everyone's consents."""
        return [self.consent(name, answers, attempt) for name in self.assignments[attempt].names]

    def open(self, answers: Sequence[CheckAnswer], consents: Sequence[Consent], attempt: int = 1) -> Integers:
        """The sum, held to the answers: (size,) in grid units."""
        plan, context, secrets = self.plan(attempt), self.context(attempt), [item.secret for item in consents]
        total = self.total(attempt)
        words = open_words(total, plan, context, secrets)
        rho = challenge(context, [item.body for item in self.receipts(attempt)], total.digest(plan, context))
        said = [item.words for item in answers]
        verify_check_words(words, plan.ring.plain_modulus, context, rho, said, secrets)
        return unmask_values(words, plan, context, secrets)

    def row(self, name: str = "a", attempt: int = 1) -> AttemptRow:
        with self.bed.sites[name].database.reading() as connection:
            found = find_attempt(connection, self.key, attempt)
        assert found is not None
        return found

    def charges(self, name: str = "a") -> int:
        return len(self.bed.sites[name].ledger.entries(kind=Kind.CHARGE))

    def restart(self, name: str) -> None:
        """The site's process ends here, and another one opens its state."""
        site = self.bed.sites[name]
        site.database.close()
        self.bed.sites[name] = open_test_site(site.config, self.bed.clock, SYSTEM_RANDOM)
        self.cores[name] = ParticipantCore(self.bed.sites[name])


def make_cohort(directory: Path, names: Sequence[str] = NAMES, rows: int = 20, **options: Any) -> Cohort:
    """Sites that exchanged their seeds."""
    bed = make_bed(directory, make_data(names, rows), **options)
    value = parse_canonical(bed.compile(make_request(schema_of(2), min_cohort=2)).to_bytes(), what="study")
    value["tasks"][0]["releases"] = 10
    value["privacy"]["epsilon"] = 50.0
    cohort = Cohort(bed, parse_study(canonical(value)))
    cohort.set_up()
    return cohort


def lay_out_as_before(raw: sqlite3.Connection) -> None:
    """Lay a participant's tables out as version 0.2 left them; nothing was dealt in its studies."""
    for name in ("open", "round", "label"):
        raw.execute(f"DROP INDEX participant_attempt_{name}")
    for name in ("snapshot", "words", "fixed", "challenge", "answer", "answer_signature", "shown", "agreed"):
        raw.execute(f"ALTER TABLE participant_attempt DROP COLUMN {name}")
    raw.execute("ALTER TABLE participant_pending DROP COLUMN deadline")
    for name, kind in (("self_seed", "BLOB"), ("sizes", "TEXT"), ("decrypted", "BLOB"), ("consent_digest", "BLOB")):
        raw.execute(f"ALTER TABLE participant_attempt ADD COLUMN {name} {kind}")
    for name, kind in (("secret_key", "BLOB"), ("tag_key", "BLOB"), ("dealer", "TEXT")):
        raw.execute(f"ALTER TABLE participant_study ADD COLUMN {name} {kind}")
    raw.execute("DROP TABLE participant_followed")
    raw.execute("UPDATE participant_version SET version_num = '0008'")
