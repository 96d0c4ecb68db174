"""Setting a population's budget, by the command and by the console alike."""

import math
import time
from typing import Any, Literal

from veilsum_node.config import did_you_mean
from veilsum_node.errors import Misuse
from veilsum_participant.cli.places import open_own
from veilsum_participant.protocol import budget_changes
from veilsum_participant.settings.config import ParticipantConfig
from veilsum_privacy.dossier.ledgers import open_source, spending_fields

Rule = Literal["gaussian", "standard", "strict"]


def read_epsilon(text: str) -> float | None:
    """An epsilon that somebody typed; None for "unlimited".

    Raises:
        Misuse: it is none.
    """
    if text == "unlimited":
        return None
    try:
        epsilon = float(text)
    except ValueError:
        epsilon = math.nan
    if not 0 < epsilon < math.inf:
        raise Misuse(f"{text!r} is not a valid epsilon.", 'Give a positive number, or "unlimited".')
    return epsilon


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
        Misuse: reason or operator is missing, the population is unknown, or epsilon or delta is none.
    """
    reason, operator = reason.strip(), operator.strip()
    if not reason or not operator:
        raise Misuse("A budget needs a reason and an operator.", "Say with --reason why, and with --operator who decided it.")
    if not 0 < delta < 0.5:
        raise Misuse(
            f"{delta:g} is not a valid delta.", "Give a number well below one divided by the number of records, such as 1e-5."
        )
    offered, bound = {settings.population(name) for name in settings.datasets}, read_epsilon(epsilon)
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
