"""What the store's modules share: the tables' metadata, tables made of dataclasses, rows read back."""

from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_args, get_type_hints

from sqlalchemy import Column, Integer, LargeBinary, MetaData, Result, Table, Text

from veilsum_node.database import Database
from veilsum_node.errors import Damage

Value = TypeVar("Value", bytes, str)
Row = TypeVar("Row")


METADATA = MetaData()
_KINDS = {bytes: LargeBinary, int: Integer}


def table(name: str, row: type[Any], *keys: str, unique: str = "") -> Table:
    """The table of a dataclass's rows: a column for each field; no two rows have the same keys, or the same ``unique``."""
    hints, columns = get_type_hints(row), list[Column[Any]]()
    for item in fields(row):
        kind, *rest = get_args(hints[item.name]) or (hints[item.name],)
        default = None if item.default is MISSING else item.default
        key = item.name in keys
        kind, once = _KINDS.get(kind, Text), item.name == unique or None
        columns.append(Column(item.name, kind, primary_key=key, unique=once, nullable=bool(rest), default=default))
    return Table(name, METADATA, *columns)


def all_rows(kind: type[Row], found: Result[Any]) -> list[Row]:
    """All rows that were found, each as its dataclass."""
    return [kind(**row) for row in found.mappings()]


def one_row(kind: type[Row], found: Result[Any]) -> Row | None:
    """The first row that was found, as its dataclass."""
    row = found.mappings().first()
    return None if row is None else kind(**row)


def promised(value: Value | None) -> Value:
    """A column that is never empty in the row's present state.

    Raises:
        Damage: it is empty.
    """
    if value is None:
        raise Damage("The store lacks data that the state of a study or attempt requires.", "Restore a backup.")
    return value


def create_tables(database: Database) -> None:
    """Create what is missing, and bring an older version's tables up to date.

    Raises:
        StateError: the tables are of a newer version.
    """
    database.migrate("veilsum_participant.migrations", "participant")
