"""Who vouches that a restored site's ledger is whole again: a peer's ledger, or the operator, who trusts the coordinator.

A backup lacks what was spent since. Receipts bring it back, but the coordinator decides what its mirror shows: one that hides
them would give back budget that was spent on its own releases. Hence the mark (:mod:`veilsum_privacy.backup.restored`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sqlalchemy import select, update

from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.identity import Role
from veilsum_node.identity.certificate import issued, moment
from veilsum_node.telemetry.logs import about
from veilsum_participant.protocol.cohorts import Cohort, complete
from veilsum_participant.protocol.recovery import known_weights, settle_one, tell
from veilsum_participant.site import LOG, Site
from veilsum_participant.store.populations import COHORTS
from veilsum_privacy.backup.restored import RESTORED, lift_mark, read_mark
from veilsum_privacy.ledger import LedgerFault, LedgerReader, verify_ledger
from veilsum_privacy.ledger.receipts import Receipt, verify_receipt
from veilsum_privacy.ledger.walking import KeptReceipt


def vouch(site: Site, others: LedgerReader) -> str:
    """Lift the mark of a restored site by a ledger whose receipts were just recovered.

    Returns:
        Why the mark stands; empty if none does now.
    """
    mark = site.restored()
    if mark is None:
        return ""
    try:
        found = verify_ledger(others, authority=site.credentials.authority)
    except LedgerFault as error:
        return f"That ledger does not verify: {error.message}"
    if found.role is not Role.PARTICIPANT:
        return f"That is the mirror of {found.site}: it rests on the coordinator's word. Take the export of another site."
    if found.site == site.name:
        return "That is this site's own ledger. Take the export of another site."
    if (last := others.entries()[-1].time) < mark.made:
        ends = f"The ledger of {found.site} ends at {moment(last)}, before the backup was made ({moment(mark.made)})"
        return f"{ends}. Let that site run `veilsum ledger checkpoint`, and export it anew."
    with site.database.transaction() as connection:
        lift_mark(connection)
    LOG.warning(
        "the restored ledger was completed from the ledger of %s", found.site, extra=about("recovered", participant=found.site)
    )
    return ""


def trust_coordinator(site: Site, reason: str, operator: str) -> list[int]:
    """Take the coordinator's mirror for the whole truth about what a restored site spent.

    The ledger keeps the operator's word: every population's budget is set once more as it is, with that reason. The mark is
    lifted when a session has read the mirror.

    Returns:
        Numbers of the ledger's new entries.

    Raises:
        Misuse: the site was not restored, or a ledger vouched for it since.
    """
    with site.database.transaction() as connection:
        mark = read_mark(connection)
        if mark is None:
            raise Misuse(
                "No restored backup waits for confirmation.", "--trust-coordinator belongs to `veilsum participant restore`."
            )
        said = f"{reason} (restored from the backup of {moment(mark.made)}; spent since, by the coordinator's word alone)"
        entries = []
        for population in site.ledger.populations(connection):
            budget = site.ledger.budget(population, connection)
            if budget is not None and not mark.trusted:
                number = site.ledger.set_budget(
                    connection,
                    population,
                    budget.epsilon,
                    budget.delta,
                    reason=said,
                    operator=operator,
                    adaptive=budget.adaptive,
                )
                entries.append(number)
        connection.execute(update(RESTORED).values(trusted=True))
    return entries


def recover_receipts(
    site: Site, receipts: Iterable[KeptReceipt], beside: Callable[[int], Sequence[KeptReceipt]] | None = None
) -> list[int]:
    """Charge what receipts show that another ledger kept, a mirror's or a peer's, or its export, and this one does not know as
    charged. Other sites' are passed over.

    Args:
        beside: all receipts that an entry of that ledger covers, by its number: who was in the sum.

    Returns:
        Numbers of the ledger's new entries.
    """
    own = [kept for kept in receipts if kept.parsed.participant == site.name]
    with site.database.transaction() as connection:
        outcomes = [settle_one(connection, site, kept.receipt, kept.consent, kept.certificate) for kept in own]
        for kept in own:
            receipt = kept.parsed
            unknown = select(COHORTS.c.context).where(COHORTS.c.context == receipt.context, COHORTS.c.members.is_(None))
            if beside is not None and connection.execute(unknown).first() is not None:  # of whom that sum was
                members = _cohort(receipt, beside(kept.entry), site)
                if members is not None:
                    weights = known_weights(connection, site, receipt.study, members)
                    complete(connection, receipt.context, members, weights)
    return tell(outcomes)


def _cohort(own: Receipt, kept: Sequence[KeptReceipt], site: Site) -> Cohort | None:
    """Who signed receipts for a sum; None unless they are as many as the site's own receipt says."""
    members = {}
    try:
        for item in kept:
            signer = issued(item.certificate, site.credentials.authority, Role.PARTICIPANT)
            members[verify_receipt(item.receipt, signer, own.study, own.context).participant] = signer.fingerprint
    except HostileInput as error:
        LOG.error("these receipts do not show who was in a sum: %s", error)
        return None
    return members if site.name in members and len(members) == len(kept) == own.cohort_size else None
