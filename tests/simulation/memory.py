"""A party's database in memory, spoken to with little between the product's statements and SQLite.

The statements are the product's and compiled by SQLAlchemy, each form of one once; then they go to the driver. Pools, events
and rows of SQLAlchemy, which cost more than everything else in a history, are passed over. Transactions are as in
:mod:`veilsum_node.database`: one writer, everything or nothing, faults of the driver as errors of ours.
"""

from __future__ import annotations

import sqlite3
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy
from sqlalchemy.dialects import sqlite

from veilsum_node.errors import Damage

_INSPECT = sqlalchemy.inspect
_DIALECT: Any = sqlite.dialect()
_DIALECT.server_version_info = sqlite3.sqlite_version_info


class Prepared:
    """A compiled form of a statement: what goes to the driver, and how its values and rows are converted."""

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled
        self.text, self.places = str(compiled), tuple(compiled.positiontup or ())
        self.writes = bool(compiled.isinsert or compiled.isupdate or compiled.isdelete)
        self.lists = tuple(
            compiled.bind_names[bind] for bind in (*compiled.post_compile_params, *compiled.literal_execute_params)
        )
        binds = {**compiled._bind_processors}
        self.binds = [(place, binds[name]) for place, name in enumerate(self.places) if binds.get(name) is not None]
        columns = compiled._result_columns or []
        self.names = tuple(str(column.keyname) for column in columns)
        found = [column.type._cached_result_processor(_DIALECT, None) for column in columns]
        self.results = [(place, convert) for place, convert in enumerate(found) if convert is not None]
        prefetched = getattr(compiled, "insert_prefetch", ()) if compiled.isinsert else ()
        self.defaults = {column.key: column.default.arg for column in prefetched}
        self.row: Any = namedtuple("Row", self.names, rename=True) if self.names else tuple
        self._expanded: dict[tuple[int, ...], tuple[str, list[tuple[str, int]]]] = {}

    def order(self, parameters: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
        """The statement's text, and its values in order."""
        if not self.lists:
            values = [parameters[name] for name in self.places]
            for place, convert in self.binds:
                values[place] = convert(values[place])
            return self.text, values
        sizes = tuple(len(parameters[name]) for name in self.lists)
        if sizes not in self._expanded:
            expanded = self.compiled._process_parameters_for_postcompile(dict(parameters))
            known = {
                f"{name}_{at + 1}": (name, at) for name, size in zip(self.lists, sizes, strict=True) for at in range(size)
            }
            places = [known.get(name, (name, -1)) for name in expanded.positiontup]
            self._expanded[sizes] = expanded.statement, places
        text, places = self._expanded[sizes]
        return text, [parameters[name] if at < 0 else parameters[name][at] for name, at in places]


class Bound:
    """A statement's compiled form with the values that the statement itself holds."""

    def __init__(self, prepared: Prepared, extracted: Any, own: Any) -> None:
        self.prepared = prepared
        held = prepared.compiled.construct_params({}, extracted_parameters=extracted, _collected_params=own, _check=False)
        self._fixed = {**held, **prepared.defaults}

    def order(self, given: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
        """The statement's text, and its values in order."""
        return self.prepared.order({**self._fixed, **given})


_PREPARED: dict[Any, Prepared] = {}


def prepare(statement: Any, names: tuple[str, ...], many: bool) -> Bound:
    """A statement's compiled form; remembered with the statement, which the product makes once where it matters."""
    known = vars(statement).get("_simulated")
    if known is not None and known[0] == id(statement):  # a changed copy has an id of its own
        found = known[1].get((names, many))
    else:
        statement._simulated = known = (id(statement), {})
        found = None
    if found is None:
        key, extracted, own = statement._generate_cache_key()
        prepared = _PREPARED.get((key, names, many))
        if prepared is None:
            compiled = statement._compiler(
                _DIALECT, cache_key=(key, extracted, own), column_keys=list(names), for_executemany=many
            )
            prepared = _PREPARED[key, names, many] = Prepared(compiled)
        found = known[1][names, many] = Bound(prepared, extracted, own)
    bound: Bound = found
    return bound


class Answer:
    """What a statement brought: the part of SQLAlchemy's results that the product uses."""

    def __init__(self, prepared: Prepared | None, cursor: sqlite3.Cursor) -> None:
        self.rowcount = cursor.rowcount
        self._row: Any = tuple if prepared is None else prepared.row
        self._names = () if prepared is None else prepared.names
        rows: list[Any] = cursor.fetchall()
        if prepared is not None and prepared.results and rows:
            rows = [list(row) for row in rows]
            for row in rows:
                for place, convert in prepared.results:
                    row[place] = convert(row[place])
        self._rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.all())

    def all(self) -> list[Any]:
        """All rows."""
        return list(map(self._row._make, self._rows)) if self._names else self._rows

    def first(self) -> Any:
        """The first row, None without one."""
        return (self._row._make(self._rows[0]) if self._names else self._rows[0]) if self._rows else None

    def one(self) -> Any:
        """The only row."""
        assert len(self._rows) == 1
        return self.first()

    def mappings(self) -> Answer:
        """The same with rows by column name."""
        return _Mappings(self)

    def scalar(self) -> Any:
        """The first value of the first row, None without one."""
        return self._rows[0][0] if self._rows else None

    def scalar_one(self) -> Any:
        """The only row's first value."""
        assert len(self._rows) == 1
        return self._rows[0][0]

    def scalars(self) -> Scalars:
        """Every row's first value."""
        return Scalars(row[0] for row in self._rows)


class Scalars(list[Any]):
    """First values of rows."""

    def all(self) -> list[Any]:
        """All of them."""
        return self


class _Mappings(Answer):
    def __init__(self, answer: Answer) -> None:
        self._names, self._rows = answer._names, answer._rows

    def all(self) -> list[Any]:
        return [dict(zip(self._names, row, strict=True)) for row in self._rows]

    def first(self) -> Any:
        return dict(zip(self._names, self._rows[0], strict=True)) if self._rows else None


class Quick:
    """In the place of :class:`sqlalchemy.Connection`.

    Args:
        raw: the driver's connection, with transactions begun by hand.
        point: called before every statement that writes.
    """

    dialect = _DIALECT

    def __init__(self, raw: sqlite3.Connection, point: Callable[[], None]) -> None:
        self._raw, self._point = raw, point
        self.afterwards: list[Callable[[], None]] = []

    def execute(self, statement: Any, parameters: Any = None) -> Answer:
        """Carry out a statement, with one set of values or with a list of them."""
        many = isinstance(parameters, list)
        given = parameters if many else [parameters or {}]
        bound = prepare(statement, tuple(given[0]), many and len(given) > 1)
        if bound.prepared.writes:
            self._point()
        for each in given:
            cursor = self._raw.execute(*bound.order(each))
        return Answer(bound.prepared, cursor)

    def exec_driver_sql(self, text: str) -> Answer:
        """Carry out a statement as it stands."""
        return Answer(None, self._raw.execute(text))

    def scalar(self, statement: Any, parameters: Any = None) -> Any:
        """The first value of the first row."""
        return self.execute(statement, parameters).scalar()

    def scalars(self, statement: Any, parameters: Any = None) -> Scalars:
        """Every row's first value."""
        return self.execute(statement, parameters).scalars()

    def _run_ddl_visitor(self, visitor: Any, table: sqlalchemy.Table, *, checkfirst: Any = False) -> None:
        """What :meth:`sqlalchemy.Table.create` asks of a connection."""
        self._point()
        made = sqlalchemy.schema.CreateTable(table, if_not_exists=bool(checkfirst))
        self._raw.execute(str(made.compile(dialect=_DIALECT)))

    # what the product asks of an inspector

    def has_table(self, name: str) -> bool:
        """Whether there is such a table."""
        return bool(self._raw.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchall())

    def get_table_names(self) -> list[str]:
        """All tables."""
        return [name for (name,) in self._raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


def inspect_quickly(subject: Any) -> Any:
    """In the place of :func:`sqlalchemy.inspect`."""
    return subject if isinstance(subject, Quick) else _INSPECT(subject)


@contextmanager
def faults() -> Iterator[None]:
    """Exceptions of the driver as errors of ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise Damage(f"The database refused a transaction: {error}.") from error
