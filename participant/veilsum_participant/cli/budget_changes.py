"""Setting a population's budget, by the command and by the console alike."""

import time
from typing import Any, Literal

from veilsum_node.config import did_you_mean, validate
from veilsum_node.errors import Misuse
from veilsum_participant.cli.places import open_own
from veilsum_participant.protocol import budget_changes
from veilsum_participant.settings.config import BudgetConfig, ParticipantConfig
from veilsum_privacy.dossier.ledgers import open_source, spending_fields

Rule = Literal["gaussian", "standard", "strict"]


def read_epsilon(text: str, delta: float = 1e-5) -> float | None:
    """An epsilon that somebody typed, for a delta; None for "unlimited".

    Raises:
        ConfigurationError: either is not one that a configuration may state.
    """
    try:
        given: float | str = float(text)
    except ValueError:
        given = text
    epsilon = validate({"epsilon": given, "delta": delta}, BudgetConfig, source="The budget").epsilon
    return None if epsilon == "unlimited" else epsilon


def change_budget(
    settings: ParticipantConfig,
    population: str,
    epsilon: str,
    delta: float,
    *,
    reason: str,
    operator: str,
    adaptive: Rule | None = None,
) -> dict[str, Any]:
    """Append a budget to the ledger; it holds for everything released so far.

    Returns:
        where the population stands, with ``below_spent``: whether that is more than the budget.

    Raises:
        Misuse: reason or operator is missing, the population is unknown, or epsilon or delta is not one.
    """
    reason, operator = reason.strip(), operator.strip()
    if not reason or not operator:
        raise Misuse("A budget needs a reason and an operator.", "Say with --reason why, and with --operator who decided it.")
    offered, bound = {settings.population(name) for name in settings.datasets}, read_epsilon(epsilon, delta)
    with open_own(settings) as (opened, database), database.transaction() as connection:
        known = offered | set(opened.populations(connection))
        if population not in known:
            raise Misuse(f"No dataset is of the population {population!r}.", did_you_mean(population, known))
        earlier = opened.budget(population, connection)
        rule = adaptive or ("gaussian" if earlier is None else earlier.adaptive)
        words, now = {"reason": reason, "operator": operator}, int(time.time())
        entry = budget_changes.change_budget(
            connection, opened, settings.policy, now, population, bound, delta, adaptive=rule, **words
        )
    with open_source(settings.state) as reader:
        fields = spending_fields(reader, population) if reader.budget(population) is not None else {"population": population}
    below = fields.get("epsilon") is not None and (isinstance(fields["spent"], str) or fields["spent"] > fields["epsilon"])
    return fields | {"below_spent": below, "waits_for_second": entry is None}
