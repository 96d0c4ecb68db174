"""Setting a budget, by one person or, where the policy says so, by two.

What the first of two people decides is kept in the site's store for a week. The ledger gets one entry when the second one has
decided the same, with both names and reasons. A budget that is lowered by the same rule holds at once, whoever lowers it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Column, Connection, Float, Integer, MetaData, String, Table, Text, delete, insert, inspect, select

from veilsum_node.errors import Misuse
from veilsum_participant.protocol.four_eyes import check_second
from veilsum_participant.settings.config import Policy
from veilsum_privacy.accounting.accountant import Adaptive
from veilsum_privacy.ledger import Budget, Ledger
from veilsum_privacy.ledger.statements import LONGEST_TEXT

PROPOSAL_SECONDS = 7 * 86400
"""How long the word of the first of two people counts."""

MOST_WORDS = LONGEST_TEXT // 2
"""Characters of one person's reason, or name: two people's are one text of the ledger's entry."""

PROPOSALS = Table(
    "participant_budget_proposal",
    MetaData(),
    Column("population", String(64), primary_key=True),
    Column("epsilon", Float),  # None: unlimited
    Column("delta", Float, nullable=False),
    Column("adaptive", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("operator", Text, nullable=False),
    Column("time", Integer, nullable=False),
)
"""The table is made by the first proposal, so no migration makes it."""


@dataclass(frozen=True)
class Proposal:
    """A budget that waits for a second person.

    Attributes:
        reason, operator: the first person's.
        time: when, Unix seconds.
    """

    population: str
    budget: Budget
    reason: str
    operator: str
    time: int


def proposals(connection: Connection, now: int) -> list[Proposal]:
    """What waits for a second person, by population; what is older than a week, or dated further ahead, counts no more."""
    if not inspect(connection).has_table(PROPOSALS.name):
        return []
    known = PROPOSALS.c.time.between(now - PROPOSAL_SECONDS + 1, now + PROPOSAL_SECONDS)
    query = select(PROPOSALS).where(known).order_by(PROPOSALS.c.population)
    return [
        Proposal(row.population, Budget(row.epsilon, row.delta, row.adaptive), row.reason, row.operator, row.time)
        for row in connection.execute(query)
    ]


def change_budget(
    connection: Connection,
    ledger: Ledger,
    policy: Policy,
    now: int,
    population: str,
    epsilon: float | None,
    delta: float,
    *,
    adaptive: Adaptive,
    reason: str,
    operator: str,
) -> int | None:
    """Set a population's budget, or propose it where two people have to.

    Args:
        policy: the site's, whose ``four_eyes_budget`` asks for two.
        now: Unix seconds.
        population: whose budget.
        epsilon, delta, adaptive: the budget; an epsilon of None is unlimited.
        reason, operator: why, and who decides.

    Returns:
        The number of the ledger's entry; None where it waits for somebody else now.

    Raises:
        Misuse: the same person proposed it, or one whose name looks alike; or a figure is out of range.
    """
    budget, earlier = Budget(epsilon, delta, adaptive), ledger.budget(population, connection)
    operator, reason = " ".join(operator.split()), reason.strip()
    if not operator.isprintable():  # one that nobody sees would make a second person of the first
        raise Misuse("A budget's operator is a name of signs that can be seen.", "Give the name of the person.")
    if max(map(len, (operator, reason))) > MOST_WORDS:  # an entry is there for good, and an export has no line without end
        raise Misuse(f"A budget's reason and operator are texts of at most {MOST_WORDS} characters.", "Say it in fewer words.")
    if not policy.four_eyes_budget or (earlier is not None and _is_lower(budget, earlier)):
        _withdraw(connection, population)
        return ledger.set_budget(connection, population, epsilon, delta, reason=reason, operator=operator, adaptive=adaptive)
    if not (operator and reason):
        raise Misuse("A budget needs a reason and an operator.")
    check_second(operator, [])
    first = next((item for item in proposals(connection, now) if item.population == population), None)
    if first is not None and first.budget == budget:
        check_second(operator, [first.operator])
        _withdraw(connection, population)
        reasons = reason if reason == first.reason else f"{first.reason}; {reason}"
        return ledger.set_budget(
            connection,
            population,
            epsilon,
            delta,
            reason=reasons,
            operator=f"{first.operator} and {operator}",
            adaptive=adaptive,
        )
    PROPOSALS.create(connection, checkfirst=True)
    _withdraw(connection, population)
    values = {"epsilon": epsilon, "delta": delta, "adaptive": adaptive, "reason": reason, "operator": operator, "time": now}
    connection.execute(insert(PROPOSALS).values(population=population, **values))
    return None


def _is_lower(budget: Budget, earlier: Budget) -> bool:
    """Whether a budget allows nothing that the earlier one did not."""
    if budget.adaptive != earlier.adaptive or budget.delta > earlier.delta or budget.epsilon is None:
        return False
    return earlier.epsilon is None or budget.epsilon <= earlier.epsilon


def _withdraw(connection: Connection, population: str) -> None:
    if inspect(connection).has_table(PROPOSALS.name):
        connection.execute(delete(PROPOSALS).where(PROPOSALS.c.population == population))
