"""Faults planted in the product's code for the time of a test, each like one wrong line: the simulation must find them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from veilsum_coordinator.protocol.accumulator import Accumulator, Upload
from veilsum_coordinator.protocol.machine import StudyMachine
from veilsum_coordinator.protocol.rounds import Round
from veilsum_coordinator.storage.journal import SqlJournal
from veilsum_node.errors import Refusal
from veilsum_participant.boundary.front import Directive
from veilsum_participant.protocol import budgets, contributions, core, limits, openings, recovery
from veilsum_participant.protocol.contributions import Contributions
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.site import Site
from veilsum_participant.store.attempts import find_attempt
from veilsum_participant.store.studies import open_studies
from veilsum_privacy.ledger import Kind, gate
from veilsum_privacy.ledger.gate import Gate
from veilsum_privacy.ledger.totals import Follower
from veilsum_privacy.results.whole_sums import coefficients_from_bytes
from veilsum_proto import federation_pb2 as pb

Plant = Callable[[ExitStack], None]


def _set(stack: ExitStack, where: Any, name: str, value: object) -> None:
    stack.callback(setattr, where, name, getattr(where, name))
    setattr(where, name, value)


def _set_states(stack: ExitStack, name: str, value: tuple[str, ...]) -> None:
    """Set a group of states in every part of the protocol that goes by it."""
    for part in (budgets, contributions, limits, openings, recovery):
        if hasattr(part, name):
            _set(stack, part, name, value)


def _consent_not_durable_at_the_site(stack: ExitStack) -> None:
    """The attempt's state is not written beside the charge."""
    finish = openings.finish_attempt

    def forgetful(connection: Any, study: bytes, attempt: int, state: str) -> None:
        if state != "consented":
            finish(connection, study, attempt, state)

    _set(stack, openings, "finish_attempt", forgetful)


def _consent_not_durable_at_the_coordinator(stack: ExitStack) -> None:
    """A consent counts, but is not kept."""
    _set(stack, SqlJournal, "keep_consent", lambda *_: None)


def _consent_before_charge(stack: ExitStack) -> None:
    """The consent is sent, and then charged."""
    handle = ParticipantCore.handle

    def early(self: ParticipantCore, directive: Directive, channel: Any) -> None:
        if directive.kind == pb.DIRECTIVE_KIND_CONSENT:
            with self.site.database.reading() as connection:
                row = find_attempt(connection, directive.study, directive.attempt)
            if row is not None and row.consent is not None:
                channel.consent(directive.study, directive.round, directive.attempt, bytes(row.consent), b"")
        handle(self, directive, channel)

    _set(stack, core.ParticipantCore, "handle", early)


def _answer_not_durable(stack: ExitStack) -> None:
    """An answer leaves its site, and is not written."""
    change = openings.change_attempt

    def forgetful(connection: Any, study: bytes, attempt: int, **values: Any) -> None:
        if "answer" not in values:
            change(connection, study, attempt, **values)

    _set(stack, openings, "change_attempt", forgetful)


def _answers_not_durable(stack: ExitStack) -> None:
    """Consents are asked for before the journal holds what everybody answered."""
    _set(stack, SqlJournal, "keep_answers", lambda *_: None)


def _freed_after_consent(stack: ExitStack) -> None:
    """An attempt that was consented to counts as open, so a new assignment or a deadline frees it."""
    _set_states(stack, "OPEN", ("reserved", "payload", "consented"))


def _freed_after_consent_in_the_ledger_too(stack: ExitStack) -> None:
    """The same, and the ledger does not object."""
    _freed_after_consent(stack)
    free, about = Gate.free, gate.about

    def uncharged(connection: Any, context: bytes) -> Any:
        return {kind: row for kind, row in about(connection, context).items() if kind is not Kind.CHARGE}

    def careless(self: Gate, connection: Any, context: bytes, *, reason: str = "") -> int:
        with ExitStack() as call:
            _set(call, gate, "about", uncharged)
            return free(self, connection, context, reason=reason)

    _set(stack, Gate, "free", careless)


def _piece_added_twice(stack: ExitStack) -> None:
    """A piece of coefficients that comes again is added again."""
    add = Accumulator.add

    def eager(self: Accumulator, name: str, index: int, data: bytes) -> None:
        upload: Upload = self.uploads[name]
        if not upload.complete and index == upload.next - 1 and index > 0:
            part = self.plan.piece_words(index)
            assert self._total is not None
            self._total.add_part(part, coefficients_from_bytes(data, part.stop - part.start, self.plan.ring))
            return
        add(self, name, index, data)

    _set(stack, Accumulator, "add", eager)


def _stale_cohort_accepted(stack: ExitStack) -> None:
    """An assignment of an earlier attempt is answered, too: numbers need not rise."""
    check = Contributions._check

    def forgetful(
        self: Contributions, connection: Any, opened: Any, assignment: Any, broadcast: bytes, *, resumed: bool
    ) -> Any:
        try:
            return check(self, connection, opened, assignment, broadcast, resumed=resumed)
        except Refusal as refusal:
            if "only increase" not in refusal.message:
                raise
            row = dataclasses.replace(opened.row, attempt=0, round=0)
            return check(self, connection, dataclasses.replace(opened, row=row), assignment, broadcast, resumed=resumed)

    _set(stack, Contributions, "_check", forgetful)


def _stale_session_accepted(stack: ExitStack) -> None:
    """An assignment that was made for an earlier process of the site is answered by the next one."""
    check = Contributions._check

    def trusting(
        self: Contributions, connection: Any, opened: Any, assignment: Any, broadcast: bytes, *, resumed: bool
    ) -> Any:
        site = self._site
        nonce, named = site.nonce, dict(assignment.cohort).get(site.name)
        try:
            site.nonce = named or nonce
            return check(self, connection, opened, assignment, broadcast, resumed=resumed)
        finally:
            site.nonce = nonce

    _set(stack, Contributions, "_check", trusting)


def _second_attempt_consented(stack: ExitStack) -> None:
    """A site forgets that it consented in this round, and answers its next attempt."""
    _set_states(stack, "PAID", ("released",))


def _echo_counts(stack: ExitStack) -> None:
    """A refusal counts as one of what is open now, whichever directive it answers, and also of who has consented."""
    refuse, owes = StudyMachine.refuse, Round.owes

    def deaf(self: StudyMachine, name: str, code: Any, number: int, attempt: int, more: Any = (), _: Any = 0) -> None:
        with ExitStack() as call:
            _set(call, Round, "owes", lambda current, of: of == name or owes(current, of))
            refuse(self, name, code, number, attempt, more)

    _set(stack, StudyMachine, "refuse", deaf)


def _other_reservations_not_counted(stack: ExitStack) -> None:
    """The budget is held against what was charged, and not against what is reserved, be it for another study."""
    held = Follower.epsilon_held

    def generous(self: Follower, connection: Any, population: str, *more: Any) -> Any:
        budget, figures = held(self, connection, population, *more)
        if budget is not None:
            charged = self.standing(connection, population).charged
            figures = [charged.epsilon(budget, item) for item in more]
        return budget, figures

    _set(stack, Follower, "epsilon_held", generous)


def _one_study_frees_the_other(stack: ExitStack) -> None:
    """A new attempt of a study gives up what is open of every study."""
    give_up = contributions.give_up_open

    def eager(connection: Any, site: Any, study: bytes, attempt: int | None = None) -> None:
        if attempt is None:
            for row in open_studies(connection):
                give_up(connection, site, row.digest)
        give_up(connection, site, study, attempt)

    _set(stack, contributions, "give_up_open", eager)


def _unsaved_decision(stack: ExitStack) -> None:
    """What the coordinator decided is asked for before the journal holds it."""
    directives = StudyMachine.directives

    def hasty(self: StudyMachine, name: str) -> Any:
        unsaved, self._unsaved = self._unsaved, False
        try:
            return directives(self, name)
        finally:
            self._unsaved = unsaved

    _set(stack, StudyMachine, "directives", hasty)


def _mark_ignored(stack: ExitStack) -> None:
    """A restored site contributes before anybody vouched for its ledger."""
    check = Site.check_ledger

    def trusting(self: Site) -> None:
        try:
            check(self)
        except Refusal as refusal:
            if "restored" not in refusal.message:
                raise

    _set(stack, Site, "check_ledger", trusting)


def _mirror_not_settled(stack: ExitStack) -> None:
    """A restored site reads what the mirror shows, and charges nothing."""
    _set(stack, recovery, "settle", lambda *_: [])


BUGS: dict[str, Plant] = {
    "consent not durable (site)": _consent_not_durable_at_the_site,
    "consent not durable (coordinator)": _consent_not_durable_at_the_coordinator,
    "consent before charge": _consent_before_charge,
    "reservation freed after consent": _freed_after_consent,
    "reservation freed after consent, ledger too": _freed_after_consent_in_the_ledger_too,
    "piece added twice": _piece_added_twice,
    "answer not durable (site)": _answer_not_durable,
    "answers not durable (coordinator)": _answers_not_durable,
    "stale cohort accepted": _stale_cohort_accepted,
    "second attempt of a round": _second_attempt_consented,
    "stale session accepted": _stale_session_accepted,
    "refusal of an old directive counts": _echo_counts,
    "another study's reservation not counted": _other_reservations_not_counted,
    "a study's attempt frees another's reservation": _one_study_frees_the_other,
    "unsaved decision acted on": _unsaved_decision,
    "restored site contributes unvouched": _mark_ignored,
    "mirror not charged after a restore": _mirror_not_settled,
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The product with one of :data:`BUGS`."""
    with ExitStack() as stack:
        BUGS[name](stack)
        yield
