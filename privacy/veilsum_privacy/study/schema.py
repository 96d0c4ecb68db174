"""What a dataset must look like: columns with public bounds, categories and missing values.

A schema is public and agreed before anyone looks at data: bounds come from medicine or measurement, never from the records.
Features are scaled to [-1, 1] by these bounds. This module describes; reading files is the participant's.
"""

from collections.abc import Iterator
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from veilsum_node.fields import SMALLEST, Frozen, Name, Real

if TYPE_CHECKING:
    from veilsum_privacy.study.codes import Groups

MAX_NAME = 128
"""Characters of a column's name."""

MAX_LABEL = 128
"""Characters of what tables and pictures call a column."""

MAX_CATEGORIES = 256
"""Categories of a column."""

MAX_CODES = 60_000
"""Codes and ranges that a column's groups may name together; a study is at most 1 MiB."""

ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME)]

Label = Annotated[str, StringConstraints(max_length=MAX_LABEL)]
"""What tables and pictures call a column; empty for its name. It is not part of what is computed."""


def _unstated(label: str) -> bool:
    return not label  # studies signed before do not state it


class _Fillable(Frozen):
    """A column of which a draft may leave keys open, for a person to fill in."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not value.keys() <= cls.model_fields.keys():
            return value  # an unknown key may be a misspelt one: pydantic says both
        if not isinstance(value.get("name"), str) or len(value["name"]) > MAX_NAME:
            return value
        missing = [key for key, field in cls.model_fields.items() if field.is_required() and key not in value]
        if missing:
            raise ValueError(f"column {value['name']!r}: to be filled in: {', '.join(missing)}")
        return value

    @property
    def source(self) -> str:
        """The file's column that it is read from."""
        return str(getattr(self, "of", "") or getattr(self, "name"))  # noqa: B009


class NumberColumn(_Fillable):
    """A numeric feature with public bounds ``low < high``, in the column's own unit.

    ``impute`` is the public value that stands in for a missing one; without it a record with a missing value contributes
    zero to every block that needs the value.
    """

    kind: Literal["number"] = "number"
    name: ColumnName
    low: Real
    high: Real
    impute: Real | None = None
    unit: str = ""
    label: Label = Field(default="", exclude_if=_unstated)

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"column {self.name!r}: low must be below high")
        if not self.high / 2.0 - self.low / 2.0 >= SMALLEST:
            raise ValueError(f"column {self.name!r}: low and high lie too close together")
        if self.impute is not None and not self.low <= self.impute <= self.high:
            raise ValueError(f"column {self.name!r}: impute must lie within [low, high]")
        return self

    @property
    def width(self) -> int:
        """How many features the column becomes."""
        return 1


class DateColumn(NumberColumn):
    """A date that counts as the days since ``origin``: another column's date, or one date for all records.

    Dates are read as ISO 8601, ``2024-02-29``; what follows the day is cut off. ``low``, ``high`` and ``impute`` are in days.
    A record without the date, or without the origin, has a missing value.
    """

    kind: Literal["date"] = "date"  # type: ignore[assignment]  # tells the two apart in a schema
    origin: ColumnName
    unit: Literal["days"] = "days"

    @property
    def origin_day(self) -> int | None:
        """Days from 1970-01-01 to the one origin; None where it is a column."""
        try:
            return (date.fromisoformat(self.origin) - date(1970, 1, 1)).days
        except ValueError:
            return None


class CategoryColumn(_Fillable):
    """A categorical feature: an indicator for each of at least two categories. Values compare as text, and by value
    where they spell no category."""

    kind: Literal["category"] = "category"
    name: ColumnName
    categories: tuple[str, ...] = Field(min_length=2, max_length=MAX_CATEGORIES)
    impute: str | None = None
    label: Label = Field(default="", exclude_if=_unstated)

    @model_validator(mode="before")
    @classmethod
    def _few(cls, value: Any) -> Any:
        named = value.get("categories") if isinstance(value, dict) else None
        if isinstance(named, list | tuple) and len(named) > MAX_CATEGORIES:
            told = f"column {value.get('name')!r} has {len(named):,} categories, of {MAX_CATEGORIES} at most."
            raise ValueError(f'{told} Roll codes up into groups: kind = "codes", docs/files.md')
        return value

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len(set(self.categories)) != len(self.categories):
            raise ValueError(f"column {self.name!r}: a category stands twice")
        if self.impute is not None and self.impute not in self.categories:
            raise ValueError(f"column {self.name!r}: impute is not one of the categories")
        return self

    @property
    def width(self) -> int:
        return len(self.categories)


_STATE = '{}: state either `groups`, such as "icd-10-chapters", or `prefix` with the `categories` that count'


def _text(item: object) -> str:
    """The name of a group, or a category, of an unchecked schema."""
    return str(item.get("name") if isinstance(item, dict) else getattr(item, "name", item))


class CodeGroup(Frozen):
    """One group and its codes: ``E11``, with all below it, or all from ``E10..E14``."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    codes: tuple[str, ...] = Field(min_length=1)


class CodeColumn(CategoryColumn):
    """A column of codes, each of which counts as the group that it is of: the categories.

    Attributes:
        of: the file's column of codes; empty for one of this column's own name. Several columns may be of one.
        system: how the codes are written (:data:`veilsum_privacy.study.codes.SYSTEMS`). A cell that holds no such code has no
            category. Case, dots and what follows a code, as in ``E11.-``, do not count: ``e11.9`` is ``E119``.
        prefix: how many characters a code's group is; the categories are those that count. None where ``groups`` are stated.
        groups: or groups by name; the longest code that a cell begins with decides. In a file, the name of a public table
            stands for its groups (:data:`veilsum_privacy.study.codes.TABLES`); the study carries them.
        other: the category of every other code; without one it has none.
        categories: of groups their names; the last is ``other``, if it is not among them.
    """

    kind: Literal["codes"] = "codes"  # type: ignore[assignment]  # tells the two apart in a schema
    of: Annotated[str, StringConstraints(max_length=MAX_NAME)] = ""
    system: Literal["any", "icd-10", "icd-9-cm", "atc"] = "any"
    prefix: int | None = Field(default=None, ge=1, le=16)
    groups: tuple[CodeGroup, ...] = Field(default=(), max_length=MAX_CATEGORIES)
    other: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, value: Any) -> Any:
        """Put a public table's groups in place of its name, and name the categories that follow from the rest."""
        if not isinstance(value, dict):
            return value
        value, where = dict(value), f"column {value.get('name')!r}"
        named = value.get("groups")
        if isinstance(named, str):
            from veilsum_privacy.study.codes import TABLES  # which studies without codes do without

            if named not in TABLES:
                raise ValueError(f"{where}: no public table is called {named!r}; there are {', '.join(TABLES)}")
            system, groups = TABLES[named]
            if value.setdefault("system", system) != system:
                raise ValueError(f"{where}: {named!r} is of codes of {system}")
            value["groups"] = named = groups
        if isinstance(named, dict):
            raise ValueError(f"{where}: a file of groups is named in a schema's file, beside which it lies")
        other = [value["other"]] if isinstance(value.get("other"), str) else []
        stated = named or value.get("categories")
        if isinstance(stated, list | tuple) and (number := len({*map(_text, stated), *other})) > MAX_CATEGORIES:
            told = f"{where}: makes {number:,} categories, of {MAX_CATEGORIES} at most."
            raise ValueError(f"{told} State fewer, and `other` for the rest")
        if isinstance(named, list | tuple) and named:
            made = tuple(dict.fromkeys([*map(_text, named), *other]))
            if len(made) == 1:
                raise ValueError(f"{where}: one group alone tells nothing apart; state `other` for all other codes")
            if value.setdefault("categories", made) is not made and tuple(value["categories"]) != made:
                raise ValueError(f"{where}: its categories are its groups and `other`; leave `categories` out")
        elif isinstance(given := value.get("categories"), list | tuple):
            value["categories"] = given if not other or other[0] in given else (*given, *other)
        elif value.keys() <= cls.model_fields.keys():
            raise ValueError(
                f"{where}: state as categories the prefixes that count" if value.get("prefix") else _STATE.format(where)
            )
        return value

    @model_validator(mode="after")
    def _grouped(self) -> Self:
        where = f"column {self.name!r}"
        if (self.prefix is None) == (not self.groups):
            raise ValueError(_STATE.format(where))
        names = {group.name for group in self.groups}
        if len(names) != len(self.groups) or self.other in names:
            raise ValueError(f"{where}: a group stands twice")
        if (number := sum(len(group.codes) for group in self.groups)) > MAX_CODES:
            raise ValueError(f"{where}: names {number:,} codes, of {MAX_CODES:,} at most; a code stands for all below it")
        for text in self.categories if self.prefix is not None else ():
            if text != self.other and len(text.strip().replace(".", "")) != self.prefix:
                raise ValueError(f"{where}: {text!r} is not a prefix of {self.prefix} characters, dots aside")
        try:
            self._index  # noqa: B018  # found malformed here, and kept
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        return self

    @cached_property
    def _index(self) -> "tuple[Groups, tuple[int, ...]]":
        """What finds a code's group, and the category of each group."""
        from veilsum_privacy.study.codes import SYSTEMS, Groups

        named = [(group.name, group.codes) for group in self.groups]
        named = named or [(text, (text,)) for text in self.categories if text != self.other]
        places = {text: place for place, text in enumerate(self.categories)}
        return Groups(SYSTEMS[self.system], named), tuple(places[name] for name, _ in named)

    @property
    def other_place(self) -> int:
        """The index of the category of codes without a group; -1 without one."""
        return -1 if self.other is None else self.categories.index(self.other)

    def place(self, text: str) -> int:
        """The index of the category of a cell's text; -1 for what is not a code, and for a code without a category."""
        groups, places = self._index
        code = groups.system.normal(text)
        if code is None:
            return -1
        found = groups.find(code)
        return places[found] if found >= 0 else self.other_place


class ClassValues(Frozen):
    """One class of the label and the raw values that mean it."""

    name: Name
    values: tuple[str, ...] = Field(min_length=1)


class LabelColumn(Frozen):
    """The column that says which class a record belongs to."""

    column: ColumnName
    classes: tuple[ClassValues, ...] = Field(min_length=2, max_length=1000)
    label: Label = Field(default="", exclude_if=_unstated)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        values = [value for item in self.classes for value in item.values]
        names = [item.name for item in self.classes]
        if len(set(values)) != len(values) or len(set(names)) != len(names):
            raise ValueError("label: a class or one of its values stands twice")
        return self


Column = Annotated[NumberColumn | DateColumn | CategoryColumn | CodeColumn, Field(discriminator="kind")]


class DatasetSchema(Frozen):
    """The agreed shape of a dataset.

    Attributes:
        columns: the features, in order.
        label: the class column, or None.
        header: whether CSV files carry column names; without it ``order`` names the file's columns in order.
        order: all columns of a file without a header, unused ones included.
        missing: texts that mean "no value" (an empty cell and NaN always do).
        max_records: public bound on the records of one site; a larger site uses all; its sums are bounded.
        joined: whether a person may have several records, as where a query joins tables. Studies then protect the subject.
    """

    columns: tuple[Column, ...] = Field(min_length=1, max_length=4096)
    label: LabelColumn | None = None
    header: bool = True
    order: tuple[ColumnName, ...] = ()
    missing: tuple[str, ...] = ("", "?", "NA", "nan")
    max_records: int = Field(default=100_000, ge=1, le=2**24)
    joined: bool = Field(default=False, exclude_if=lambda joined: not joined)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [column.name for column in self.columns]
        if self.label is not None:
            names.append(self.label.column)
        if len(set(names)) != len(names):
            raise ValueError("a column stands twice")
        if not self.header:
            names = list(self.file_columns)
            unknown = [name for name in names if name not in self.order]
            if unknown:
                raise ValueError(f"header = false needs `order` to name every column; missing: {', '.join(unknown)}")
        return self

    @property
    def file_columns(self) -> tuple[str, ...]:
        """Every column that is read of a file, each once: the features, what dates count from, and the label."""
        label = [] if self.label is None else [self.label.column]
        return tuple(dict.fromkeys([*(column.source for column in self.columns), *self.date_columns, *label]))

    @property
    def date_columns(self) -> tuple[str, ...]:
        """The file's columns that hold dates."""
        dates = [column for column in self.columns if isinstance(column, DateColumn)]
        return tuple(dict.fromkeys([*(d.name for d in dates), *(d.origin for d in dates if d.origin_day is None)]))

    @property
    def width(self) -> int:
        """Number of features after scaling and indicators."""
        columns, width = self.__dict__.get("_width", ((), 0))  # a copy with other columns takes this along
        if columns is not self.columns:
            width = sum(column.width for column in self.columns)
            self.__dict__["_width"] = self.columns, width
        return int(width)

    def places(self) -> Iterator[tuple[Column, slice]]:
        """Each column, and where its features lie among all of them."""
        first = 0
        for column in self.columns:
            yield column, slice(first, first + column.width)
            first += column.width

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in order; empty without a label."""
        return tuple(item.name for item in self.label.classes) if self.label is not None else ()

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name for each feature: the column, or ``column=category``."""
        names: list[str] = []
        for column in self.columns:
            if isinstance(column, NumberColumn):
                names.append(column.name)
            else:
                names.extend(f"{column.name}={category}" for category in column.categories)
        return tuple(names)


def header_conflict(schema: DatasetSchema) -> str:
    """What schema and owner of a CSV file say of its first line where they differ."""
    said = ("holds records", "names the columns")
    return f"The schema says that a CSV file's first line {said[schema.header]}; its owner, that it {said[not schema.header]}."
