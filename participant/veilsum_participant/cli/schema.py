"""The ``veilsum schema`` commands: a first draft of a schema, with its bounds left open for a person to set.

A draft comes from a data dictionary, OMOP's vocabulary or public records; from private ones only with ``--local``. Bounds are
never taken from records, and what a draft leaves open every reader of schemas refuses
(:mod:`veilsum_privacy.study.schema`).
"""

from pathlib import Path
from typing import Annotated

import typer

from veilsum_node.errors import Misuse
from veilsum_node.process.console import DialectOption, JsonOption, print_fields, print_line
from veilsum_participant.drafting.dictionary import draft_dictionary
from veilsum_participant.drafting.records import LEAST, draft_records
from veilsum_participant.drafting.vocabulary import draft_vocabulary, is_vocabulary

GIVES_AWAY = (
    "Drafted from private records. The draft gives away the columns' names; what most of a column's cells are (numbers, dates"
    f" or texts), and whether they repeat; and every category, codes and their first characters included, that at least"
    f" {LEAST} records name, sorted; and whether most texts are codes of ICD or ATC."
    " Records are counted, not persons: a text that one patient has in that many records is named. It gives away no count,"
    " and of numbers and dates neither the smallest nor the largest. A schema is signed into each study that uses it; every"
    " site, the coordinator and the analyst see it: remove what they may not see. Set bounds by medicine or measurement: those"
    " of your own records would tell the values of the most extreme patients."
)
"""What ``--local`` prints, and writes at the head of the draft."""

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def schema() -> None:
    """Draft a schema of a data dictionary or of public records."""


@app.command()
def draft(
    file: Annotated[
        Path, typer.Argument(help="A data dictionary (CSV), a vocabulary of OMOP, or records with --public or --local.")
    ],
    out: Annotated[Path, typer.Option("--out", help="New file for the draft.")] = Path("schema.toml"),
    dialect: DialectOption = None,
    public: Annotated[
        bool, typer.Option("--public", help="The file holds records that anyone may see: CSV or Parquet.")
    ] = False,
    local: Annotated[
        bool, typer.Option("--local", help="The file holds private records; says what a draft of them gives away.")
    ] = False,
    domain: Annotated[
        list[str] | None, typer.Option("--domain", help="A domain of a vocabulary, whose concepts become categories.")
    ] = None,
    concept: Annotated[
        list[int] | None, typer.Option("--concept", help="A concept_id of a vocabulary, which becomes a column.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Draft a schema of a data dictionary, of OMOP's vocabulary or of public records; bounds stay open for a person to set."""
    if dialect and not (public or local):
        raise Misuse("--dialect is of records.", "Leave it out, or say --public or --local.")
    _require_one_kind(file, public=public, local=local, chosen=bool(domain or concept))
    from veilsum_node.identity.files import write_new
    from veilsum_participant.settings.declared_files import declared

    if domain or concept:
        found = draft_vocabulary(file, domain or (), concept or ())
    else:
        found = draft_records(declared(file, dialect or ()), private=local) if public or local else draft_dictionary(file)
    write_new(out, found.text(GIVES_AWAY if local else "").encode())
    if local and not as_json:
        print_line(GIVES_AWAY)
    fields: dict[str, object] = {"file": str(out), "columns": len(found.columns), "open": found.open}
    fields["left out"] = found.left_out if as_json else [f"{name} ({why})" for name, why in found.left_out.items()]
    print_fields(fields | ({"gives away": GIVES_AWAY} if local and as_json else {}), title="Draft", as_json=as_json)


def _require_one_kind(file: Path, *, public: bool, local: bool, chosen: bool) -> None:
    """Insist that the options fit together and say what kind of file it is.

    Raises:
        Misuse: they do not.
    """
    if chosen and (public or local):
        raise Misuse("--domain and --concept are of a vocabulary.", "Leave out --public and --local: it holds no records.")
    if not (public or local or chosen) and is_vocabulary(file):
        raise Misuse(
            "It is not said what to draft of the vocabulary.",
            "Say --domain Gender, or --concept 3004410; both may be repeated.",
        )
    if public and local:
        raise Misuse("--public and --local exclude each other.", "Records that not everyone may see are private.")
