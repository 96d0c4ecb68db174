"""The ``veilsum ledger budget`` commands: set, change or show budgets."""

from __future__ import annotations

import math
import time
from typing import Annotated, Literal

import typer

from veilsum_node.config import did_you_mean
from veilsum_node.errors import Misuse
from veilsum_node.process.console import JsonOption, print_fields, print_json, print_line, print_rows
from veilsum_participant.cli.entries import entry_row, spending_row
from veilsum_participant.cli.places import ConfigOption, LedgerArgument, OwnOption, find_ledger, load_participant, open_own
from veilsum_participant.ledgers import entry_fields, open_source, spending_fields
from veilsum_participant.protocol.budget_changes import change_budget
from veilsum_privacy.ledger import Kind

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Set, change or show budgets.")

PopulationArgument = Annotated[str, typer.Argument(help="Population whose budget is meant.")]


@app.callback()
def budget() -> None:
    """Set, change or show budgets."""


@app.command("set")
def set_budget(
    population: PopulationArgument,
    epsilon: Annotated[str, typer.Option("--epsilon", help='What may be lost in all, or "unlimited".')],
    delta: Annotated[float, typer.Option("--delta", help="Of the population, over every study.")],
    reason: Annotated[str, typer.Option("--reason", help="Why, for the record.")],
    operator: Annotated[str, typer.Option("--operator", help="Who decided it, for the record.")],
    adaptive: Annotated[
        Literal["gaussian", "standard", "strict"] | None,
        typer.Option("--adaptive", help="The rule of accounting; by default the one in force, at first gaussian."),
    ] = None,
    config: OwnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Append a budget to the ledger; it holds for everything released so far."""

    settings = load_participant(config)
    reason, operator = reason.strip(), operator.strip()
    if not reason or not operator:
        raise Misuse("A budget needs a reason and an operator.", "Say with --reason why, and with --operator who decided it.")
    if not 0 < delta < 0.5:
        raise Misuse(
            f"{delta:g} is not a valid delta.", "Give a number well below one divided by the number of records, such as 1e-5."
        )
    offered, bound = {settings.population(name) for name in settings.datasets}, _epsilon(epsilon)
    with open_own(settings) as (opened, database), database.transaction() as connection:
        known = offered | set(opened.populations(connection))
        if population not in known:
            raise Misuse(f"No dataset is of the population {population!r}.", did_you_mean(population, known))
        earlier = opened.budget(population, connection)
        rule = adaptive or ("gaussian" if earlier is None else earlier.adaptive)
        words = {"reason": reason, "operator": operator}
        entry = change_budget(
            connection, opened, settings.policy, int(time.time()), population, bound, delta, adaptive=rule, **words
        )
    with open_source(settings.state) as reader:
        fields = spending_fields(reader, population) if reader.budget(population) is not None else {"population": population}
    below = fields.get("epsilon") is not None and (isinstance(fields["spent"], str) or fields["spent"] > fields["epsilon"])
    if as_json:
        print_json(fields | {"below_spent": below, "waits_for_second": entry is None})
        return
    if entry is None:
        print_line(
            f"{operator} proposes this budget; it holds once somebody else has set the same within a week"
            " (policy.four_eyes_budget). Until then:"
        )
    if "spent" not in fields:
        print_line(f"{population} has no budget.")
        return
    print_fields(spending_row(fields), title=f"Budget of {population}", as_json=False)
    if below:
        print_line("Warning: this is below what is spent. Nothing more is released until it is raised.")


@app.command("show")
def show_budget(
    ctx: typer.Context, place: LedgerArgument = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Show every population's budget, what is left of it, and who set it when and why."""
    where = find_ledger(place, config, ctx.obj)
    with open_source(where.text) as opened:
        spending = [spending_fields(opened, name) for name in opened.populations()]
        changes = [entry_fields(entry) for entry in opened.entries(kind=Kind.BUDGET)]
    if as_json:
        print_json({"ledger": where.name, "spending": spending, "changes": changes})
        return
    empty = "No population has a budget."
    print_rows([spending_row(item) for item in spending], title="Budgets, as epsilon", as_json=False, empty=empty)
    if changes:
        keep = ("no.", "time", "population", "what")
        rows = [{name: entry_row(item, None)[name] for name in keep} for item in changes]
        print_rows(rows, title="How they came about", as_json=False)


def _epsilon(text: str) -> float | None:
    if text == "unlimited":
        return None
    try:
        epsilon = float(text)
    except ValueError:
        epsilon = math.nan
    if not 0 < epsilon < math.inf:
        raise Misuse(f"{text!r} is not a valid epsilon.", 'Give a positive number, or "unlimited".')
    return epsilon
