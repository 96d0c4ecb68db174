"""In a study that declares its steps a site takes them itself: the broadcast of a round is what it computed, or refused.

Between two rounds it is shown the sum of the last one with all that its members signed, opens and verifies it as whoever
verifies a result does, takes the step, and keeps the model durably. So it needs nobody's word for the model: the digest in
the next context is that of its own, and who was shown another sum has another context, in which no mask cancels. All of this
is before an attempt: no record is read, and nothing reserved or charged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection

from veilsum_node.errors import HostileInput, Refusal, RefusalCode
from veilsum_participant.boundary import front as says
from veilsum_participant.boundary.encoding import read
from veilsum_participant.boundary.front import ObjectKind
from veilsum_participant.protocol.open_studies import OpenStudy, load_open_study
from veilsum_participant.protocol.openings import Shown
from veilsum_participant.site import Site
from veilsum_participant.store.attempts import AttemptRow, paid_attempt
from veilsum_participant.store.followed import find_followed, find_seen, keep_followed, keep_seen
from veilsum_participant.store.tables import promised
from veilsum_privacy.computation.following import Following as Model
from veilsum_privacy.ledger.receipts import parse_receipt
from veilsum_privacy.results.release_check import CheckedRoster, MemberPart, ReleaseParts, ReleaseRules
from veilsum_privacy.securesum.check_words import CheckAnswer
from veilsum_privacy.securesum.context import Assignment, broadcast_digest, parse_assignment

Fetch = Callable[[ObjectKind, bytes, int, int], bytes]
"""Gets an object by kind, study, round and attempt."""


@dataclass
class _Held:
    """A model as it is kept, at hand for the study's next round.

    Attributes:
        study: whose.
        marks: with which it is kept.
        model: it.
        broadcast: label and digest of what it broadcasts.
    """

    study: bytes
    marks: Mapping[str, Any]
    model: Model = field(repr=False)
    broadcast: tuple[str, bytes]


class Following:
    """What a site broadcasts to itself."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._held: _Held | None = None

    def broadcast(self, key: bytes, assignment: Assignment, enclosed: bytes | None, fetch: Fetch) -> bytes:
        """The broadcast of an assignment as this site computed it.

        Args:
            key: digest of a study that declares its steps.
            assignment: what the site is asked to contribute to.
            enclosed: what came along with it: of the release of the round before what the site has not seen, or None.
            fetch: gets what the coordinator holds.

        Raises:
            Refusal: a release that is shown does not hold, or the assignment names another broadcast than follows from the
                releases. The site keeps what it had verified.
        """
        site, held, self._held = self._site, self._held, None  # a model that fails half way is read again
        known = held.marks if held is not None and held.study == key else None
        with site.database.reading() as connection:
            opened = load_open_study(connection, site, key)
            kept = find_followed(connection, key, known)
        rules = ReleaseRules(
            CheckedRoster(opened.agreed, opened.roster(site), site.credentials.authority), None if kept is None else kept.marks
        )
        if held is None or kept is None or kept.marks is not known:
            model = site.studies.follow(opened.agreed, b"" if kept is None else kept.model)
            held = _Held(key, {}, model, ("", b""))
        model = held.model
        if rules.round >= assignment.round:
            raise Refusal(RefusalCode.ROUND, "This site has seen the release of that round.")
        try:
            while rules.round < assignment.round - 1:
                number = rules.round + 1
                shown = self._completed(key, number, enclosed) if enclosed and number == assignment.round - 1 else None
                if shown is None:
                    shown = read(fetch(ObjectKind.RELEASE, key, number, 0), says.ReleaseObject)
                self._take(opened, rules, held, shown)
            data = b"".join(model.broadcast(assignment.label))
            if broadcast_digest(data) == assignment.broadcast:
                self._held = replace(held, marks=rules.marks, broadcast=(assignment.label, assignment.broadcast))
                return data
            if model.taken or assignment.label != model.label:
                raise HostileInput("The round's broadcast is not the step from the released sums.")
            data = fetch(ObjectKind.BROADCAST, key, assignment.round, assignment.attempt)
            if broadcast_digest(data) != assignment.broadcast:
                raise HostileInput("The broadcast is not the one that the assignment names.")
            model.begin_with(data)
        except HostileInput as error:
            raise Refusal(RefusalCode.BROADCAST, error.message) from error
        self._keep(key, rules, model)
        self._held = replace(held, marks=rules.marks, broadcast=(assignment.label, assignment.broadcast))
        return data

    def _completed(self, key: bytes, number: int, enclosed: bytes) -> says.ReleaseObject | None:
        """A release that came along, with what this site has seen of it where that is left out; None if it keeps nothing of
        that round any more, as after a backup was restored."""
        shown = read(enclosed, says.ReleaseObject)
        if shown.assignment:
            return shown
        with self._site.database.reading() as connection:
            kept = find_seen(connection, key)
        seen = None if kept is None else read(kept, says.ReleaseObject)
        if seen is None or parse_assignment(seen.assignment).round != number:
            return None
        if len(shown.members) != len(seen.members):
            raise HostileInput("There is not exactly one consent of each member of the cohort.")
        members = tuple(
            replace(own, consent=new.consent or own.consent, signature=new.signature or own.signature)
            for own, new in zip(seen.members, shown.members, strict=True)
        )
        return replace(seen, members=members, total=shown.total)

    def _take(self, opened: OpenStudy, rules: ReleaseRules, held: _Held, shown: says.ReleaseObject) -> None:
        """Verify the next release, take the step, and keep the model.

        Raises:
            HostileInput: it does not hold, is another attempt's than this site consented to, or was made of another broadcast.
        """
        members = [MemberPart(item.words, item.consent, item.signature) for item in shown.members]
        parts = ReleaseParts(shown.assignment, *Shown.of(shown.fixed, shown.certificate), members, shown.total)
        assignment, values = rules.follow(parts)
        with self._site.database.reading() as connection:
            paid = paid_attempt(connection, opened.digest, assignment.round)
        if paid not in (None, assignment.attempt):
            raise HostileInput("The release is of another attempt than this site consented to.")
        model, (label, said) = held.model, held.broadcast
        held.broadcast = "", b""  # the step changes it
        if assignment.broadcast != (
            said if label == assignment.label else broadcast_digest(model.broadcast(assignment.label))
        ):
            raise HostileInput("The release was made of a broadcast that does not follow from those before it.")
        model.take(assignment.label, values, len(assignment.names))
        self._keep(opened.digest, rules, model)

    def _keep(self, key: bytes, rules: ReleaseRules, model: Model) -> None:
        with self._site.database.transaction() as connection:
            keep_followed(connection, key, rules.marks, model.to_pieces())


def keep_seen_of(
    connection: Connection,
    row: AttemptRow,
    assignment: Assignment,
    shown: Shown,
    answers: Sequence[CheckAnswer],
    agreed: bytes,
) -> None:
    """Keep what a site has seen of an attempt's release, and gave for it, when it consents: all but the others' consents with
    their signatures, and the sum.

    Args:
        row: the attempt's.
        shown: by what the sum was checked.
        answers: of all, in the cohort's order.
        agreed: the site's own signature under them.
    """
    own = parse_receipt(promised(row.receipt)).participant
    members = [
        says.MemberConsent(answer.words, *((promised(row.consent), agreed) if name == own else (b"", b"")))
        for name, answer in zip(assignment.names, answers, strict=True)
    ]
    keep_seen(connection, row.study, shown.released(row.assignment, members).to_bytes())
