"""The ``veilsum ledger budget`` commands: set, change or show budgets."""

from typing import Annotated

import typer

from veilsum_node.process.console import JsonOption, print_fields, print_json, print_line, print_rows
from veilsum_participant.cli.budget_changes import Rule, change_budget
from veilsum_participant.cli.entries import entry_row, spending_row
from veilsum_participant.cli.places import ConfigOption, LedgerArgument, OwnOption, find_ledger, load_participant
from veilsum_privacy.dossier.ledgers import entry_fields, open_source, spending_fields
from veilsum_privacy.ledger import Kind

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Set, change or show budgets.")

PopulationArgument = Annotated[str, typer.Argument(help="Population whose budget is meant.")]


@app.callback()
def budget() -> None:
    """Set, change or show budgets."""


@app.command("set")
def set_budget(
    population: PopulationArgument,
    epsilon: Annotated[str, typer.Option("--epsilon", help='The total epsilon, or "unlimited".')],
    delta: Annotated[float, typer.Option("--delta", help="The total delta of the population, over every study.")],
    reason: Annotated[str, typer.Option("--reason", help="Why, for the record.")],
    operator: Annotated[str, typer.Option("--operator", help="Who decided it, for the record.")],
    adaptive: Annotated[
        Rule | None, typer.Option("--adaptive", help="The rule of accounting; by default the one in force, at first gaussian.")
    ] = None,
    config: OwnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Append a budget to the ledger; it holds for everything released so far."""
    settings = load_participant(config)
    fields = change_budget(settings, population, epsilon, delta, reason=reason, operator=operator, adaptive=adaptive)
    if as_json:
        print_json(fields)
        return
    if fields["waits_for_second"]:
        print_line(
            f"{operator.strip()} proposes this budget; it holds once somebody else has set the same within a week"
            " (policy.four_eyes_budget). Until then:"
        )
    if "spent" not in fields:
        print_line(f"{population} has no budget.")
        return
    print_fields(spending_row(fields), title=f"Budget of {population}", as_json=False)
    if fields["below_spent"]:
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
