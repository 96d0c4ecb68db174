"""What a site checks before it answers and before it consents, rule by rule; and that it answers one challenge for each
context, whatever happens: crashes, restored backups, second sessions, a coordinator that fixes two sums."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from support.checking import NAMES, Cohort, lay_out_as_before, make_cohort
from support.shown import keep_receipt_of
from veilsum_node.database import Database
from veilsum_node.errors import HostileInput, Refusal, RefusalCode
from veilsum_node.identity import Credentials, Label
from veilsum_node.randomness import SYSTEM_RANDOM, RandomSource
from veilsum_participant.datasets import Datasets
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.protocol.membership import leave_former_studies
from veilsum_participant.protocol.openings import Consent, Shown
from veilsum_participant.protocol.recovery import begin_restored
from veilsum_participant.site import Site, SiteObserver, Stage
from veilsum_participant.store.attempts import AttemptState, add_attempt, attempts_in, change_attempt
from veilsum_participant.store.studies import StudyState, change_study, find_study
from veilsum_privacy.backup.restored import put_mark
from veilsum_privacy.ledger import Kind, Ledger
from veilsum_privacy.ledger.kept_receipts import last_numbers
from veilsum_privacy.ledger.receipts import SignedReceipt, consent_proof, parse_receipt, sign_receipt
from veilsum_privacy.securesum.check_words import CHECKS, CheckAnswer, CheckStatement, Signed

OTHER = bytes(range(32))


@pytest.fixture
def cohort(tmp_path: Path) -> Cohort:
    made = make_cohort(tmp_path)
    made.collect()
    return made


def refused(call: Callable[[], object]) -> RefusalCode:
    with pytest.raises(Refusal) as caught:
        call()
    return caught.value.code


def credentials(cohort: Cohort, name: str) -> Credentials:
    return cohort.bed.sites[name].credentials


def forged(cohort: Cohort, place: int, by: str = "", **changes: Any) -> list[SignedReceipt]:
    """The receipts with one signed anew, by its own sender if nobody else is named."""
    shown = cohort.receipts()
    receipt = replace(parse_receipt(shown[place].body), **changes)
    shown[place] = sign_receipt(receipt, credentials(cohort, by or NAMES[place]).signing_key)
    return shown


# -- one answer for each context -------------------------------------------------------------------------------------------


def test_a_round_of_honest_parties_opens_to_the_sum(cohort: Cohort) -> None:
    """One consent less, or another answer of one member, and it does not."""
    answers = cohort.answers()
    consents = cohort.consents(answers)
    assert len(cohort.open(answers, consents)) == cohort.plan().size
    assert [cohort.charges(name) for name in NAMES] == [1, 1, 1, 1]
    with pytest.raises(HostileInput):
        cohort.open(answers, [*consents[:-1], Consent(OTHER, b"")])
    words = answers[0].words
    with pytest.raises(HostileInput, match="vouched for"):
        cohort.open([answers[0]._replace(words=(words[0] ^ 1, *words[1:])), *answers[1:]], consents)


QUESTIONS: dict[str, Callable[[Cohort], Shown]] = {
    "another sum": lambda cohort: cohort.shown(fixed=cohort.fixed(OTHER)),
    "another receipt of a member": lambda cohort: cohort.shown(receipts=forged(cohort, 1, number=2)),
    "both": lambda cohort: cohort.shown(receipts=forged(cohort, 2, payload=OTHER), fixed=cohort.fixed(OTHER)),
}
"""What a coordinator may sign as well as what it signed first."""


def nothing(_: Cohort) -> None:
    pass


def crash(cohort: Cohort) -> None:
    cohort.restart("a")


def another_session(cohort: Cohort) -> None:
    cohort.cores["a"] = ParticipantCore(cohort.bed.sites["a"])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("meanwhile", [nothing, crash, another_session])
@pytest.mark.parametrize("question", QUESTIONS)
def test_another_question_of_one_context_ends_the_attempt(
    cohort: Cohort, question: str, meanwhile: Callable[[Cohort], None]
) -> None:
    first = cohort.shown()
    answer = cohort.answer("a", first)
    meanwhile(cohort)
    assert cohort.answer("a", first) == answer
    assert cohort.answer("a", cohort.shown()) == answer, "signed anew, it is the same question"
    secrets = [cohort.row().consent, b"".join(cohort.payloads["a", 1].pieces)[1000:1040]]
    assert refused(lambda: cohort.answer("a", QUESTIONS[question](cohort))) is RefusalCode.CHECK
    row = cohort.row()
    assert row.state is AttemptState.TOMBSTONE
    assert (row.consent, row.payload, row.words, row.shown, row.answer, row.agreed) == (None,) * 6
    assert len(cohort.bed.sites["a"].ledger.entries(kind=Kind.FREE)) == 1
    assert refused(lambda: cohort.answer("a", first)) is RefusalCode.ROUND
    site = cohort.bed.sites["a"]
    on_disk = b"".join(path.read_bytes() for path in site.config.state.parent.glob("participant.db*"))
    assert all(secret and secret not in on_disk for secret in secrets)


def test_two_questions_at_a_time_get_one_answer(cohort: Cohort) -> None:
    """Two sessions of one site, which no honest coordinator grants."""
    shown = [cohort.shown(), *(make(cohort) for make in QUESTIONS.values())]
    start, found = threading.Barrier(len(shown)), list[CheckAnswer]()

    def ask(question: Shown) -> None:
        openings = ParticipantCore(cohort.bed.sites["a"]).openings
        start.wait()
        with suppress(Refusal):
            found.append(openings.on_fixed(cohort.key, 1, 1, question))

    threads = [threading.Thread(target=ask, args=(question,)) for question in shown]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 1
    assert cohort.row().state is AttemptState.TOMBSTONE


def test_an_attempt_that_is_paid_for_answers_no_other_question_and_stays_paid(cohort: Cohort) -> None:
    shown = cohort.shown()
    answers = cohort.answers(shown=shown)
    consent = cohort.consent("a", answers)
    assert cohort.answer("a", shown) == answers[0]
    for make in QUESTIONS.values():
        assert refused(lambda make=make: cohort.answer("a", make(cohort))) is RefusalCode.CHECK  # type: ignore[misc]
    assert cohort.row().state is AttemptState.CONSENTED
    assert cohort.consent("a", answers) == consent
    assert cohort.consent("a", []) == consent, "there is one consent, whatever is shown now"
    assert cohort.charges() == 1


# -- a restored state ------------------------------------------------------------------------------------------------------


def test_a_restored_state_answers_nothing_that_it_may_have_answered(cohort: Cohort, tmp_path: Path) -> None:
    """The backup was made before the answer: what the site said since it does not know."""
    site, copy = cohort.bed.sites["a"], tmp_path / "copy.db"
    with closing(sqlite3.connect(site.config.state)) as one, closing(sqlite3.connect(copy)) as two:
        one.backup(two)
    cohort.answer("a")
    site.database.close()
    for suffix in ("-wal", "-shm"):
        site.config.state.with_name(site.config.state.name + suffix).unlink(missing_ok=True)
    site.config.state.write_bytes(copy.read_bytes())
    cohort.restart("a")
    site = cohort.bed.sites["a"]
    begin_restored(site)
    assert cohort.row().state is AttemptState.PAYLOAD, "without a mark it is the site's own state"
    with site.database.transaction() as connection:
        put_mark(connection, site.clock(), site.ledger.head(connection))
    begin_restored(site)
    row = cohort.row()
    assert (row.state, row.consent, row.payload, row.words) == (AttemptState.TOMBSTONE, None, None, None)
    for question in (cohort.shown(), cohort.shown(fixed=cohort.fixed(OTHER))):
        assert refused(lambda question=question: cohort.answer("a", question)) is RefusalCode.ROUND  # type: ignore[misc]
    site.ledger.verify(authority=site.credentials.authority)


# -- what is shown with a sum ----------------------------------------------------------------------------------------------


def _by(cohort: Cohort, name: str) -> Credentials:
    return cohort.bed.analyst if name == "analyst" else credentials(cohort, name)


def _reordered(cohort: Cohort) -> list[SignedReceipt]:
    one, two, *more = cohort.receipts()
    return [one, more[0], two, *more[1:]]


SHOWN_WRONG: dict[str, tuple[RefusalCode, Callable[[Cohort], Shown]]] = {
    "no receipts": (RefusalCode.RECEIPT, lambda c: c.shown()._replace(receipts=[])),
    "one receipt less": (RefusalCode.RECEIPT, lambda c: c.shown(receipts=c.receipts()[:-1])),
    "one receipt twice": (RefusalCode.RECEIPT, lambda c: c.shown(receipts=[*c.receipts()[:2], *c.receipts()[1:3]])),
    "one receipt more": (RefusalCode.RECEIPT, lambda c: c.shown(receipts=[*c.receipts(), c.receipts()[-1]])),
    "another order": (RefusalCode.RECEIPT, lambda c: c.shown(receipts=_reordered(c))),
    "its own signed anew": (RefusalCode.RECEIPT, lambda c: c.shown(receipts=forged(c, 0))),
    "its own changed": (RefusalCode.RECEIPT, lambda c: c.shown(receipts=forged(c, 0, number=7))),
    **{
        f"a receipt with another {name}": (
            RefusalCode.RECEIPT,
            lambda c, name=name, value=value: c.shown(receipts=forged(c, 2, **{name: value})),
        )
        for name, value in {
            "study": OTHER, "context": OTHER, "round": 2, "attempt": 2, "participant": "b", "version": 1,
        }.items()
    },
    "a receipt that is none": (
        RefusalCode.RECEIPT,
        lambda c: c.shown(receipts=[*c.receipts()[:3], SignedReceipt(b"{}", b"")]),
    ),
    **{
        f"countersigned with another {name}": (
            RefusalCode.RECEIPT,
            lambda c, name=name, value=value: c.shown(countersigned=c.countersigned(c.receipts(), **{name: value})),
        )
        for name, value in {
            "study": OTHER, "context": OTHER, "round": 2, "attempt": 2, "coordinator": "b", "receipts": OTHER,
        }.items()
    },
    **{
        f"countersigned by {name}": (
            RefusalCode.RECEIPT,
            lambda c, name=name: c.shown(countersigned=c.countersigned(c.receipts(), signer=_by(c, name))),
        )
        for name in ("b", "analyst")
    },
    "the certificate of a site": (
        RefusalCode.RECEIPT,
        lambda c: c.shown()._replace(certificate=credentials(c, "b").identity.certificate),
    ),
    "no certificate": (RefusalCode.RECEIPT, lambda c: c.shown()._replace(certificate=b"")),
    **{
        f"a sum with another {name}": (
            RefusalCode.CHECK,
            lambda c, name=name, value=value: c.shown(fixed=c.fixed(**{name: value})),
        )
        for name, value in {
            "study": OTHER, "context": OTHER, "round": 2, "attempt": 2, "coordinator": "b", "sum": OTHER[:31],
        }.items()
    },
    **{
        f"a sum that {name} fixed": (RefusalCode.CHECK, lambda c, name=name: c.shown(fixed=c.fixed(signer=_by(c, name))))
        for name in ("b", "analyst")
    },
    "a sum signed as something else": (RefusalCode.CHECK, lambda c: c.shown(fixed=_mislabelled(c))),
    "a sum without a signature": (RefusalCode.CHECK, lambda c: c.shown(fixed=replace(c.fixed(), signature=b""))),
    **{f"a sum of {size} bytes": (RefusalCode.CHECK, lambda c, size=size: c.shown()._replace(fixed=bytes(size)))
       for size in (0, 31, 33, 5000)},
    **{
        f"a receipt whose {name} is {value!r}": (
            RefusalCode.RECEIPT,
            lambda c, name=name, value=value: _with_part(c.shown(), **{name: value}),
        )
        for name, value in (
            *((name, OTHER[:size]) for name in ("payload", "head", "consent") for size in (0, 31)),
            *((name, OTHER + b"!") for name in ("payload", "head", "consent")),
            *(("number", number) for number in (0, 2**53, 2**63, 2**64 - 1)),
        )
    },
    **{
        f"a word whose {name} is {value!r}": (
            RefusalCode.RECEIPT,
            lambda c, name=name, value=value: _with_word(c.shown(), **{name: value}),
        )
        for name, value in (
            ("head", b""), ("head", OTHER[:31]), ("head", OTHER), ("entry", 0), ("entry", 99), ("entry", 2**53),
            ("signature", b""),
        )
    },
}  # fmt: skip


def _with_part(shown: Shown, **changes: Any) -> Shown:
    *others, last = shown.receipts
    return shown._replace(receipts=[*others, last._replace(**changes)])


def _with_word(shown: Shown, **changes: Any) -> Shown:
    return shown._replace(countersigned=shown.countersigned._replace(**changes))


def _mislabelled(cohort: Cohort) -> Signed:
    body = cohort.fixed().body
    return Signed(body, cohort.bed.hub.credentials.signing_key.sign(Label.COUNTERSIGN, body))


def test_what_is_not_signed_for_this_sum_gets_no_answer(cohort: Cohort) -> None:
    """And changes nothing: the right question is answered still."""
    before = cohort.row()
    found = {what: refused(lambda make=make: cohort.answer("a", make(cohort))) for what, (_, make) in SHOWN_WRONG.items()}  # type: ignore[misc]
    assert found == {what: code for what, (code, _) in SHOWN_WRONG.items()}
    assert cohort.row() == before
    assert cohort.answer("a").words


class Heard(SiteObserver):
    def __init__(self) -> None:
        self.stages: list[Stage] = []

    def unreadable(self, stage: Stage) -> None:
        self.stages.append(stage)


def test_what_does_not_fit_a_sum_is_counted(cohort: Cohort) -> None:
    heard = cohort.bed.sites["a"].observer = Heard()
    refused(lambda: cohort.answer("a", cohort.shown()._replace(fixed=b"")))
    answers = cohort.answers()
    refused(lambda: cohort.consent("a", answers[:-1]))
    assert heard.stages == [Stage.CHECK, Stage.CHECK]


# -- when it is asked ------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("state", list(AttemptState))
def test_only_a_payload_is_checked_and_what_was_paid_for_repeats_itself(cohort: Cohort, state: AttemptState) -> None:
    shown = cohort.shown()
    answers = cohort.answers(shown=shown)
    if state is AttemptState.CONSENTED:
        cohort.consent("a", answers)
    else:
        with cohort.bed.sites["a"].database.transaction() as connection:
            change_attempt(connection, cohort.key, 1, state=state)
    if state in (AttemptState.PAYLOAD, AttemptState.CONSENTED):
        assert cohort.answer("a", shown) == answers[0]
        assert cohort.consent("a", answers).secret
        return
    before = cohort.row()
    assert refused(lambda: cohort.answer("a", shown)) is RefusalCode.ROUND
    assert refused(lambda: cohort.consent("a", answers)) is RefusalCode.ROUND
    assert cohort.row() == before
    assert cohort.charges() == 0


def test_what_is_not_known_is_not_checked(cohort: Cohort) -> None:
    answers = cohort.answers()
    for number, attempt in ((2, 1), (1, 2), (0, 0)):
        openings = cohort.cores["a"].openings
        assert (
            refused(lambda o=openings, n=number, t=attempt: o.on_fixed(cohort.key, n, t, cohort.shown())) is RefusalCode.ROUND
        )  # type: ignore[misc]
        assert refused(lambda o=openings, n=number, t=attempt: o.on_answers(cohort.key, n, t, answers)) is RefusalCode.ROUND  # type: ignore[misc]
    assert cohort.charges() == 0


def test_an_attempt_before_another_is_over(cohort: Cohort) -> None:
    """The reservation of the next one gives it up."""
    first, answers = cohort.shown(), cohort.answers()
    cohort.collect(attempt=2)
    assert refused(lambda: cohort.answer("a", first)) is RefusalCode.ROUND
    assert refused(lambda: cohort.consent("a", answers)) is RefusalCode.ROUND
    second = cohort.answers(2)
    assert len(cohort.open(second, cohort.consents(second, 2), 2)) == cohort.plan(2).size


@pytest.mark.parametrize(("number", "attempt"), [(1, 1), (1, 5), (2, 5)])
def test_a_round_that_was_paid_for_elsewhere_is_not_checked(cohort: Cohort, number: int, attempt: int) -> None:
    """A restored site heard of it, or of a later one, after it had made its payload."""
    cohort.bed.clock.now += 1
    cohort.collect(attempt=2)
    with cohort.bed.sites["a"].database.transaction() as connection:
        if attempt == 1:
            change_attempt(connection, cohort.key, 1, state=AttemptState.RECOVERED)
        else:
            paid = {"state": AttemptState.RECOVERED, "context": OTHER, "assignment": b"", "deadline": 0, "label": ""}
            add_attempt(connection, study=cohort.key, attempt=attempt, round=number, **paid)
            change_study(connection, cohort.key, attempt=attempt, round=number)
    assert refused(lambda: cohort.answer("a", attempt=2)) is RefusalCode.ROUND
    assert cohort.row(attempt=2).answer is None
    assert cohort.answer("b", attempt=2).words


def test_an_answer_until_the_deadline(cohort: Cohort) -> None:
    shown = cohort.shown()
    cohort.bed.clock.now += 3_599
    assert cohort.answer("a", shown).words
    cohort.bed.clock.now += 1
    for name in "ab":  # also one that has answered
        assert refused(lambda name=name: cohort.answer(name, shown)) is RefusalCode.ROUND  # type: ignore[misc]
        assert cohort.row(name).state is AttemptState.TOMBSTONE
        assert cohort.row(name).consent is None


def test_a_study_that_is_left_is_neither_checked_nor_paid_for(cohort: Cohort) -> None:
    shown = cohort.shown()
    answers = cohort.answers(shown=shown)
    cohort.cores["a"].membership.leave(cohort.key, StudyState.LEFT)
    assert refused(lambda: cohort.answer("a", shown)) is RefusalCode.CLOSED
    assert refused(lambda: cohort.consent("a", answers)) is RefusalCode.CLOSED
    assert cohort.row().state is AttemptState.TOMBSTONE


def test_a_peer_whose_number_was_seen_before_is_found_before_anybody_pays(cohort: Cohort) -> None:
    database = cohort.bed.sites["a"].database
    with database.transaction() as connection:
        keep_receipt_of(connection, cohort.key, "c", 1)
    assert refused(lambda: cohort.answer("a")) is RefusalCode.RECEIPT
    assert cohort.row().answer is None


# -- consent ---------------------------------------------------------------------------------------------------------------


def said_by(cohort: Cohort, name: str, signer: str = "", **changes: Any) -> CheckAnswer:
    """What a member signs in place of its answer."""
    row = cohort.row("a")
    assert row.answered is not None
    values: dict[str, Any] = {
        "study": cohort.key, "participant": name, "round": 1, "attempt": 1, "context": row.context,
        "challenge": row.answered.challenge, "sum": row.answered.sum, "words": (1, 2, 3),
    }  # fmt: skip
    statement = CheckStatement(**(values | changes))
    return CheckAnswer(statement.words, statement.sign(credentials(cohort, signer or name).signing_key).signature)


def _instead(answers: list[CheckAnswer], place: int, other: CheckAnswer) -> list[CheckAnswer]:
    return [*answers[:place], other, *answers[place + 1 :]]


ANSWERS_WRONG: dict[str, Callable[[Cohort, list[CheckAnswer]], list[CheckAnswer]]] = {
    "none": lambda _, a: [],
    "one less": lambda _, a: a[:-1],
    "one more": lambda _, a: [*a, a[-1]],
    "another order": lambda _, a: [a[0], a[2], a[1], a[3]],
    "its own twice": lambda _, a: [a[0], a[0], *a[2:]],
    "its own signed anew with other words": lambda c, a: _instead(a, 0, said_by(c, "a")),
    "its own missing": lambda c, a: _instead(a, 0, said_by(c, "b")),
    "another sum": lambda c, a: _instead(a, 2, said_by(c, "c", sum=OTHER)),
    "another challenge": lambda c, a: _instead(a, 2, said_by(c, "c", challenge=OTHER)),
    "another context": lambda c, a: _instead(a, 2, said_by(c, "c", context=OTHER)),
    "another study": lambda c, a: _instead(a, 2, said_by(c, "c", study=OTHER)),
    "another round": lambda c, a: _instead(a, 2, said_by(c, "c", round=2)),
    "another attempt": lambda c, a: _instead(a, 2, said_by(c, "c", attempt=2)),
    "signed by another member": lambda c, a: _instead(a, 2, said_by(c, "c", signer="d")),
    "words changed": lambda _, a: _instead(a, 1, a[1]._replace(words=(a[1].words[0] ^ 1, *a[1].words[1:]))),
    "no signature": lambda _, a: _instead(a, 1, a[1]._replace(signature=b"")),
    "signed as something else": lambda c, a: _instead(
        a, 1, a[1]._replace(signature=credentials(c, "b").signing_key.sign(Label.CONSENT, b"{}"))
    ),
    "no words": lambda c, a: _instead(a, 1, said_by(c, "b", words=())),
    "two words": lambda c, a: _instead(a, 1, said_by(c, "b", words=(1, 2))),
    "four words": lambda c, a: _instead(a, 1, said_by(c, "b", words=(1, 2, 3, 4))),
    "a word that is not a word": lambda c, a: _instead(a, 1, said_by(c, "b", words=(1, 2, c.plan().ring.plain_modulus))),
    "the largest number": lambda _, a: _instead(a, 1, a[1]._replace(words=(2**64 - 1, 2, 3))),
}


def test_nobody_pays_for_answers_that_do_not_fit(cohort: Cohort) -> None:
    answers = cohort.answers()
    before = cohort.row()
    for what, make in ANSWERS_WRONG.items():
        assert refused(lambda make=make: cohort.consent("a", make(cohort, list(answers)))) is RefusalCode.CHECK, what  # type: ignore[misc]
    assert cohort.row() == before
    assert cohort.charges() == 0
    assert cohort.consent("a", answers).secret
    assert cohort.charges() == 1


def test_a_member_may_say_what_it_likes_as_long_as_it_signs_it(cohort: Cohort) -> None:
    """Whether its words are right shows only when the sum is opened."""
    answers = _instead(cohort.answers(), 1, said_by(cohort, "b"))
    assert cohort.consent("a", answers).secret


def test_no_consent_without_a_charge(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = cohort.answers()

    def charge(*_: object) -> None:
        raise HostileInput("a receipt is older than its ledger")

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "charge", charge)
        assert refused(lambda: cohort.consent("a", answers)) is RefusalCode.RECEIPT
    assert (cohort.row().state, cohort.row().agreed, cohort.charges()) == (AttemptState.PAYLOAD, None, 0)
    with cohort.bed.sites["a"].database.reading() as connection:
        assert not last_numbers(connection, cohort.key)
    assert cohort.consent("a", answers).secret
    assert cohort.charges() == 1


@pytest.mark.parametrize("by", ["b", "c", "analyst"])
def test_a_receipt_that_its_member_did_not_sign_is_answered_and_never_paid_for(cohort: Cohort, by: str) -> None:
    shown = cohort.receipts()
    body = replace(parse_receipt(shown[3].body), payload=OTHER)
    shown[3] = sign_receipt(body, _by(cohort, by).signing_key)
    asked = cohort.shown(receipts=shown)
    answers = [*(cohort.answer(name, asked) for name in NAMES[:3]), said_by(cohort, "d")]
    assert refused(lambda: cohort.consent("a", answers)) is RefusalCode.RECEIPT
    assert cohort.charges() == 0


def test_a_consent_is_the_one_that_its_receipt_commits_to_and_names_the_answers(cohort: Cohort) -> None:
    answers = cohort.answers()
    for name, consent in zip(NAMES, cohort.consents(answers), strict=True):
        receipt = cohort.receipt(name=name)
        receipt.hold(consent.secret)
        assert receipt.version == 6
        for other in NAMES:
            assert receipt.commits_to(consent_proof(consent.secret))
            assert not replace(receipt, participant=other).commits_to(consent_proof(consent.secret)) or other == name


# -- what is kept, and for how long ----------------------------------------------------------------------------------------


class Recorded(RandomSource):
    def __init__(self) -> None:
        self.drawn: list[bytes] = []

    def bytes(self, count: int) -> bytes:
        self.drawn.append(SYSTEM_RANDOM.bytes(count))
        return self.drawn[-1]


def on_disk(site: Site) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(site.config.state.parent.glob("participant.db*")))


def test_neither_a_one_time_key_nor_what_it_was_drawn_from_is_stored(tmp_path: Path) -> None:
    """Nor the secret behind a consent: with these, and a second payload of the context, its words would show."""
    cohort = make_cohort(tmp_path)
    site = cohort.bed.sites["a"]
    site.random = recorded = Recorded()
    cohort.collect()
    assert len([item for item in recorded.drawn if len(item) >= 32]) >= 3, "a secret, and the keystreams of key and errors"
    stored = on_disk(site)
    assert (cohort.row().consent or b"none") in stored
    assert not any(item[:16] in stored for item in recorded.drawn if len(item) >= 16)


def test_what_is_needed_no_longer_is_erased(cohort: Cohort) -> None:
    assert all((cohort.row().payload, cohort.row().words, cohort.row().consent))
    answers = cohort.answers()
    row = cohort.row()
    assert (row.payload, row.words, row.agreed) == (None, None, None)
    assert all((row.shown, row.answer, row.challenge, row.fixed))
    cohort.consents(answers)
    row = cohort.row()
    assert (row.payload, row.words, row.shown, row.snapshot) == (None,) * 4
    assert row.agreed
    for _ in range(2):
        cohort.cores["a"].openings.on_released(cohort.key, 1)
    assert cohort.row() == replace(row, state=AttemptState.RELEASED)
    assert len(cohort.bed.sites["a"].ledger.entries(kind=Kind.RELEASE_SEEN)) == 1


def test_no_log_shows_a_consent() -> None:
    assert {item.name for item in fields(Consent) if not item.repr} == {"secret"}


# -- crashes ---------------------------------------------------------------------------------------------------------------


class Died(BaseException):
    """The site's process is gone."""


@contextmanager
def mortal(fatal: int, *, after: bool) -> Iterator[list[int]]:
    """The process dies before, or after, the ``fatal``-th transaction is durable; yields how many there were."""
    real, counted = Database.transaction, itertools.count(1)
    seen: list[int] = []

    @contextmanager
    def transaction(database: Database) -> Iterator[Any]:
        seen.append(next(counted))
        number = seen[-1]
        with real(database) as connection:
            yield connection
            if number == fatal and not after:
                raise Died
        if number == fatal:
            raise Died

    Database.transaction = transaction  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        Database.transaction = real  # type: ignore[method-assign]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("fatal", [1, 2])
def test_a_payload_is_sent_again_as_it_was_or_never(tmp_path: Path, fatal: int, after: bool) -> None:
    cohort = make_cohort(tmp_path)
    assignment = cohort.assign()
    with pytest.raises(Died), mortal(fatal, after=after):
        cohort.cores["a"].contributions.on_assignment(cohort.key, assignment, b"")
    durable = fatal == 2 and after
    stored = cohort.row().payload if fatal == 2 or after else None
    cohort.restart("a")
    if durable:
        payload = cohort.contribute("a")
        assert payload.resumed
        assert b"".join(payload.pieces) == stored
        assert payload == cohort.contribute("a")
    elif fatal == 2 or after:  # reserved and nothing more: this attempt is over, for whatever was drawn is lost
        assert refused(lambda: cohort.contribute("a")) in (RefusalCode.ROUND, RefusalCode.CONTEXT)
        assert stored is None
    else:
        assert cohort.assign() != assignment  # of the new process
        assert not cohort.contribute("a").resumed
    with mortal(0, after=False) as seen:
        cohort.assign(attempt=2)
        cohort.contribute("a", 2)
    assert len(seen) == 2, "the transactions of a contribution"


@pytest.mark.parametrize("after", [False, True])
def test_an_answer_and_a_consent_are_given_once_over_a_crash(cohort: Cohort, after: bool) -> None:
    shown = cohort.shown()
    others = [cohort.answer(name, shown) for name in NAMES[1:]]
    with pytest.raises(Died), mortal(1, after=after):
        cohort.answer("a", shown)
    row = cohort.row()
    assert (row.answer is not None) is (row.words is None) is after
    cohort.restart("a")
    if after:
        assert refused(lambda: cohort.answer("b", cohort.shown(fixed=cohort.fixed(OTHER)))) is RefusalCode.CHECK
    own = cohort.answer("a", shown)
    kept = cohort.row().answered
    assert kept is not None
    assert (own.signature, len(own.words)) == (kept.answer.signature, CHECKS)
    if after:
        assert row.answered == kept
    answers = [own, *others]
    with pytest.raises(Died), mortal(1, after=after):
        cohort.consent("a", answers)
    assert cohort.charges() == after
    row = cohort.row()
    assert (row.state is AttemptState.CONSENTED) is (row.agreed is not None) is after
    cohort.restart("a")
    consent = cohort.consent("a", answers)
    assert cohort.charges() == 1
    assert consent == cohort.consent("a", answers)
    if after:
        assert consent.signature == row.agreed
    site = cohort.bed.sites["a"]
    site.ledger.verify(authority=site.credentials.authority)


def test_each_step_is_one_transaction(cohort: Cohort) -> None:
    shown = cohort.shown()
    with mortal(0, after=False) as seen:
        answers = cohort.answers(shown=shown)
    assert len(seen) == len(NAMES)
    with mortal(0, after=False) as seen:
        cohort.consents(answers)
    assert len(seen) == len(NAMES)


# -- what the records are tells nothing ------------------------------------------------------------------------------------


def test_refusals_do_not_depend_on_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros, extremes, few, many, and records that cannot be read: the same codes, words, sizes and writes."""
    found = []
    for rows, fails in ((1, False), (50, False), (20, True)):
        with monkeypatch.context() as patched:
            cohort = make_cohort(tmp_path / f"{rows}", rows=rows)
            if fails:
                patched.setattr(Datasets, "read", lambda *_, **__: {}["no such column"])
            cohort.collect()
            told: list[object] = [[len(piece) for piece in cohort.payloads["a", 1].pieces], len(cohort.row().words or b"")]
            with mortal(0, after=False) as seen:
                for _, make in SHOWN_WRONG.values():
                    with pytest.raises(Refusal) as caught:
                        cohort.answer("a", make(cohort))
                    told.append((caught.value.codes, caught.value.message))
                answers = cohort.answers()
                for wrong in ANSWERS_WRONG.values():
                    with pytest.raises(Refusal) as caught:
                        cohort.consent("a", wrong(cohort, list(answers)))
                    told.append((caught.value.codes, caught.value.message))
                cohort.consents(answers)
            found.append((told, len(seen)))
    assert found[0] == found[1] == found[2]


# -- an earlier version's open study ---------------------------------------------------------------------------------------


def test_an_open_study_of_an_earlier_version_is_left(cohort: Cohort) -> None:
    """What was charged stays charged, what was reserved is freed, and no secret stays behind; twice is once."""
    answers = cohort.answers()
    cohort.consents(answers)
    cohort.collect(number=2, attempt=2)
    site = cohort.bed.sites["a"]
    with site.database.reading() as connection:
        row = find_study(connection, cohort.key)
    assert row is not None
    secrets = [bytes(row.box_key or b""), bytes(cohort.row(attempt=2).consent or b""), b"dealt-secret", b"self-secret"]
    spent, entries = site.ledger.spending("records"), site.ledger.entries()
    site.database.close()
    with closing(sqlite3.connect(site.config.state)) as raw, raw:
        lay_out_as_before(raw)
        raw.execute("UPDATE participant_study SET secret_key = ?, tag_key = ?, dealer = 'a'", (b"dealt-secret" * 9, OTHER))
        raw.execute("UPDATE participant_attempt SET self_seed = ?", (b"self-secret-seed" * 2,))
    for _ in range(2):
        cohort.restart("a")
        site = cohort.bed.sites["a"]
        leave_former_studies(site)
    with site.database.reading() as connection:
        row = find_study(connection, cohort.key)
        states = {item.attempt: item.state for item in attempts_in(connection, tuple(AttemptState), cohort.key)}
    assert row is not None
    assert (row.status, row.box_key, row.seeds, row.shares, row.roster) == (StudyState.LEFT, None, None, None, None)
    assert states == {1: AttemptState.CONSENTED, 2: AttemptState.TOMBSTONE}
    found = site.ledger.entries()
    assert [item.hash for item in found[: len(entries)]] == [item.hash for item in entries]
    assert [item.kind for item in found[len(entries) :]] == [Kind.FREE]
    assert site.ledger.spending("records").releases == spent.releases == 1
    site.ledger.verify(authority=site.credentials.authority)
    assert refused(lambda: cohort.answer("a", cohort.shown(2), 2)) is RefusalCode.CLOSED
    assert not any(secret in on_disk(site) for secret in secrets)
