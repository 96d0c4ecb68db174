"""Checks of what the site has spent: its ledger, budgets, and the cohorts of earlier sums."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection

from veilsum_node.config import did_you_mean
from veilsum_node.database import open_readonly
from veilsum_node.errors import HostileInput
from veilsum_node.identity import Credentials
from veilsum_node.identity.certificate import moment
from veilsum_node.phrases import counted
from veilsum_node.telemetry.logs import printable
from veilsum_participant.checks.check import Check, CheckOutcome
from veilsum_participant.config import ParticipantConfig
from veilsum_participant.protocol.books import open_books
from veilsum_participant.protocol.budgets import Books, promised
from veilsum_participant.protocol.cohorts import FORGOTTEN, remembered
from veilsum_participant.site import COMPLETE, RESTORED
from veilsum_privacy.backup.restored import read_mark
from veilsum_privacy.dossier.figures import cost
from veilsum_privacy.ledger import LedgerReader


def ledger(config: ParticipantConfig, credentials: Credentials | None) -> Iterator[Check]:
    """Whether the ledger is this site's and verifies, and whether a restored one was completed."""
    if not config.state.exists():
        yield Check("ledger", CheckOutcome.WARNING, "there is none yet", "It is made when the participant starts.")
        return
    with open_readonly(config.state) as database:
        reader = LedgerReader(database)
        if credentials is not None and reader.site != credentials.identity.name:
            raise HostileInput(f"The ledger belongs to {printable(reader.site)}.", "Check identity and state file.")
        authority = None if credentials is None else credentials.authority
        count = reader.verify(authority=authority).entries
        with database.reading() as connection:
            mark = read_mark(connection)
    yield Check(
        "ledger", CheckOutcome.OK, f"{counted(count, 'entry', 'entries')}: chain, signatures, receipts and budgets hold"
    )
    if mark is not None and mark.trusted:
        detail = f"the backup of {moment(mark.made)}; by the operator's word the coordinator's mirror completes it"
        yield Check("restored", CheckOutcome.WARNING, detail, "The next session with the coordinator lifts it.")
    elif mark is not None:
        yield Check("restored", CheckOutcome.FAILED, f"the backup of {moment(mark.made)}. {RESTORED}", COMPLETE)


def budgets(config: ParticipantConfig) -> Iterator[Check]:
    """What the budget of each population still bears."""
    populations = sorted({config.population(name) for name in config.datasets})
    for name in sorted(set(config.budgets) - set(populations)):
        advice = did_you_mean(name, populations)
        yield Check(f"budget {name}", CheckOutcome.WARNING, "no dataset is of this population", advice)
    with open_books(config) as (connection, books):
        for name in populations:
            yield _budget(config, connection, books, name)


def _budget(config: ParticipantConfig, connection: Connection, books: Books, name: str) -> Check:
    label, budget = f"budget {name}", books.budget(name, connection)
    if budget is None:
        advice = f"Add [budgets.{name}], or use `veilsum ledger budget set {name}`."
        return Check(label, CheckOutcome.FAILED, "none: every study is refused", advice)
    room = books.headroom(name, promised(connection, config, name), connection)
    held = f"{cost(room.reserved)} spent and set aside, {cost(room.after)} if enrolled studies use all that they may"
    if budget.epsilon is None:
        return Check(label, CheckOutcome.WARNING, f"unlimited; {held}", "No limit is enforced.")
    detail = f"epsilon {budget.epsilon:g} at delta {budget.delta:g}: {held}"
    if cost(room.after) == cost(budget.epsilon) or room.after > budget.epsilon:  # a rest that no figure shows is none
        return Check(label, CheckOutcome.WARNING, detail, "Nothing is left: every study is refused.")
    if budget.delta > config.policy.max_delta:
        advice = f"It should be well below 1 / the number of records: `veilsum ledger budget set {name} --delta 1e-5`."
        return Check(
            label, CheckOutcome.WARNING, f"{detail}; delta is above policy.max_delta, {config.policy.max_delta:g}", advice
        )
    return Check(label, CheckOutcome.OK, detail)


def cohorts(config: ParticipantConfig) -> Iterator[Check]:
    """Whom studies of each population are held to."""
    with open_books(config) as (connection, _):
        for name in sorted({config.population(dataset) for dataset in config.datasets}):
            earlier = remembered(connection, config, name)
            known = {tuple(item.members) for item in earlier if item.members is not None}
            if any(item.members is None for item in earlier):
                detail = "who was in a sum that this restored site took part in is not known: no such study is accepted"
                yield Check(f"cohorts {name}", CheckOutcome.WARNING, detail, FORGOTTEN)
            elif known:
                detail = "; ".join(", ".join(names) for names in sorted(known, key=lambda names: (len(names), names)))
                said = f"studies without noise or of one cohort only are held to: {printable(detail)}"
                yield Check(f"cohorts {name}", CheckOutcome.OK, said)
