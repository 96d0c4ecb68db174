"""What a sweep runs: a study with some of its keys varied, in every combination, for several seeds.

A cell is one combination. A seed decides the split of the records and nothing else, so that cells are compared on equal splits
and gains are paired. This module runs nothing.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from veilsum_deploy.collections import Collection, load_collection, own_sites, single
from veilsum_deploy.datasets import packaged_dataset, read_dataset
from veilsum_deploy.simulation.baseline_names import OF_CELLS, OF_RECORDS, parse_baselines
from veilsum_deploy.simulation.deal import Setting
from veilsum_node.config import did_you_mean, read_toml
from veilsum_node.errors import ConfigurationError, Misuse
from veilsum_participant.settings.declared_files import declared
from veilsum_privacy.results.result import MANIFEST
from veilsum_privacy.study.schema import DatasetSchema

SETTING_KEYS = ("partition", "sites", "limit", "cap", "leave_out")
"""Keys that vary the simulation in place of the study."""

STUDY_KEY = "study"
"""The key whose values are study files beside the study, without suffix: method and parameters come from them."""

EPSILON = "privacy.epsilon"
NO_NOISE = "none"
"""The value of :data:`EPSILON` that stands for ``noise = "none"``."""

LEFT_OUT = ("default", "without")
"""The values that stand for leaving a key out."""

EACH = "each"
"""The value of ``leave_out`` that stands for every domain in turn."""

LARGEST = 1_000_000


@dataclass(frozen=True)
class Source:
    """Where records come from.

    Attributes:
        kind: ``packaged``, ``collection``, ``file`` or ``sites``: a folder of sites or domains, or a file that names them.
        name: of the packaged data set or the collection; the study's name of the data where it is the user's own.
        path: of the folder or the file.
        site_column: the file's column that names the site of each record.
        subject: the column that tells whose record each is.
        domain_column: the file's column that names the domain of each record.
        dialect: how its files of text are written, each as KEY=VALUE.
    """

    kind: str
    name: str
    path: Path | None = None
    site_column: str | None = None
    subject: str | None = None
    domain_column: str | None = None
    dialect: tuple[str, ...] = ()

    @property
    def identity(self) -> list[str]:
        """What a run of it is known by."""
        columns = {"by": self.site_column, "subject": self.subject, "domain": self.domain_column}
        own = [*(f"{key} {value}" for key, value in columns.items() if value is not None), *sorted(self.dialect)]
        return [self.kind, self.name, str(self.path and self.path.resolve()), *own]

    def load(self, schema: DatasetSchema | None) -> Collection:
        """Read the records; ``schema`` is needed for data of the user's own and overrides that of a packaged data set."""
        if self.kind == "collection" and self.path is not None:
            return load_collection(self.name, self.path)
        if self.kind == "packaged":
            return single(packaged_dataset(self.name))
        if schema is None or self.path is None:
            raise ConfigurationError("The study has no schema.", 'Add schema = "file.toml" to it.')
        if self.kind == "sites":
            columns = {"site_column": self.site_column, "domain_column": self.domain_column, "subject": self.subject}
            return own_sites(self.path, schema, self.name, dialect=self.dialect, **columns)
        return single(read_dataset(declared(self.path, self.dialect), schema, self.name))


@dataclass(frozen=True)
class SweptKey:
    """A key and the values that it takes, in order."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Cell:
    """One combination: (key, value) of every axis, in the axes' order."""

    values: tuple[tuple[str, Any], ...]

    def __hash__(self) -> int:
        return hash(json.dumps(self.values, sort_keys=True, default=str))  # a value may be a table

    def value(self, key: str) -> Any:
        """The value of a key; None where it is not varied."""
        return dict(self.values).get(key)

    def with_value(self, key: str, value: Any) -> Cell:
        """The cell whose other keys are the same."""
        return Cell(tuple((own, value if own == key else kept) for own, kept in self.values))

    @property
    def group(self) -> Cell:
        """The part that decides who holds what, and what a record's features are."""
        return Cell(tuple((key, value) for key, value in self.values if in_group(key)))

    def label(self) -> str:
        """The cell in words: short keys and values; "all" where nothing is varied."""
        parts = [f"{short(key)} {shown(value)}" for key, value in self.values]
        return ", ".join(parts) or "all"


@dataclass(frozen=True)
class Sweep:
    """A whole sweep; plain values only, so that it can be handed to another process.

    Attributes:
        content: the study.toml as parsed.
        base: directory that the study's paths are relative to.
        source: where the records come from.
        setting: the simulation's settings where no axis varies them.
        program: file of the study's frozen program, where its encoder is one.
        weights: file of its model's frozen weights.
        beside: what is computed beside the cells, as ``--baselines`` names it; None for what suits the cells' methods.
        baseline: (key, value): a cell's gain is over the cell that has this value and is the same otherwise.
    """

    content: Mapping[str, Any]
    base: Path
    source: Source
    setting: Setting
    axes: tuple[SweptKey, ...]
    seeds: tuple[int, ...]
    baseline: tuple[str, Any] | None = None
    program: Path | None = None
    weights: Path | None = None
    beside: str | None = None

    @property
    def headings(self) -> dict[str, str]:
        """A heading for each varied key, those of the setting first: its last part where that tells keys apart."""
        keys = sorted((axis.key for axis in self.axes), key=lambda key: not in_group(key))
        lasts = [short(key) for key in keys]
        return {key: last if lasts.count(last) == 1 else key for key, last in zip(keys, lasts, strict=True)}

    def cells(self) -> list[Cell]:
        """All combinations, the last axis fastest."""
        grids = [[(axis.key, value) for value in axis.values] for axis in self.axes]
        return [Cell(tuple(combination)) for combination in itertools.product(*grids)]

    def with_each_domain(self, domains: Sequence[str]) -> Sweep:
        """The sweep whose ``leave_out=each`` names every domain in turn; a domain of that very name is meant by it."""

        def named(axis: SweptKey) -> SweptKey:
            if axis.key != "leave_out" or EACH not in axis.values or EACH in domains:
                return axis
            values = [name for value in axis.values for name in (domains if value == EACH else (value,))]
            return SweptKey(axis.key, tuple(dict.fromkeys(values)))

        return replace(self, axes=tuple(named(axis) for axis in self.axes))

    def groups(self) -> list[Cell]:
        """The distinct settings among the cells, for which sites alone and pooled records are computed once."""
        return list(dict.fromkeys(cell.group for cell in self.cells()))

    def lines(self) -> list[tuple[str, Cell]]:
        """What is computed, as (kind, cell): of each setting what stands beside it, then cells with their own.

        Raises:
            Misuse: no such baseline.
        """
        found: list[tuple[str, Cell]] = []
        for group in self.groups():
            cells = [cell for cell in self.cells() if cell.group == group]
            beside = dict.fromkeys(own for cell in cells for own in self.baselines_of(cell))
            found += [own for own in beside if own[0] not in OF_CELLS]
            for cell in cells:
                found += [("cell", cell), *(own for own in beside if own[0] in OF_CELLS and own[1] == cell)]
        return found

    def baseline_of(self, cell: Cell) -> Cell | None:
        """The cell that this one's gain is over; None for a baseline itself and where there is none."""
        if self.baseline is None or cell.value(self.baseline[0]) == self.baseline[1]:
            return None
        return cell.with_value(*self.baseline)

    def content_of(self, cell: Cell) -> dict[str, Any]:
        """The study of a cell.

        Raises:
            Misuse: a key leads through a value that is not a table.
            ConfigurationError: a study file that is varied is missing or malformed.
        """
        content = copy.deepcopy(dict(self.content))
        if cell.value(STUDY_KEY) is not None:
            other = read_toml(self.base / f"{cell.value(STUDY_KEY)}.toml")
            content |= {"method": other.get("method"), "parameters": dict(other.get("parameters", {}))}
        for key, value in cell.values:
            if key not in (*SETTING_KEYS, STUDY_KEY):
                _set(content, key, value)
        return content

    def setting_of(self, cell: Cell) -> Setting:
        """The setting of a cell.

        Raises:
            Misuse: a number of sites or records that is none.
        """
        changes: dict[str, Any] = {key: value for key, value in cell.values if key in SETTING_KEYS}
        for key, value in changes.items():
            if key == "partition" or (key == "leave_out" and value not in LEFT_OUT):
                changes[key] = str(value)
            elif value in LEFT_OUT:
                changes[key] = None
            elif type(value) is not int or not 1 <= value <= LARGEST:
                raise Misuse(f"{key} = {shown(value)} is not a number of {'sites' if key == 'sites' else 'records'}.")
        return replace(self.setting, **changes)

    def data_content_of(self, group: Cell) -> dict[str, Any]:
        """The study of a group as far as it says what records and features are, with a method and privacy that always fit."""
        content = self.content_of(group)
        return {**content, "method": "fedcgs", "parameters": {}, "privacy": {"noise": "none"}}

    def baselines_of(self, cell: Cell) -> list[tuple[str, Cell]]:
        """What is computed beside a cell: (kind, the part of the cell that it depends on).

        Raises:
            Misuse: no such baseline.
        """
        kinds = parse_baselines(self.beside, str(self.content_of(cell).get("method")))
        return [(kind, self._depended_on(kind, cell)) for kind in kinds]

    @staticmethod
    def _depended_on(kind: str, cell: Cell) -> Cell:
        if kind in OF_RECORDS:
            return cell.group
        if kind in OF_CELLS:
            return cell
        return Cell(tuple((key, value) for key, value in cell.values if not key.startswith("privacy.")))

    def content_for(self, kind: str, cell: Cell) -> dict[str, Any]:
        """The study of a cell, or of what is computed beside it."""
        if kind in OF_RECORDS:
            return self.data_content_of(cell)
        content = self.content_of(cell)
        return content if kind in ("cell", *OF_CELLS) else {**content, "privacy": {"noise": "none"}}

    def run_id(self, kind: str, cell: Cell, seed: int) -> str:
        """What a run is known by when a sweep is resumed: a hash of all that decides it but the noise."""
        setting = self.setting_of(cell)
        content = self.content_for(kind, cell)
        encoder = content.get("encoder")
        named = [content.get("schema")]
        if isinstance(encoder, dict) and "result" in encoder:
            named.append(f"{encoder['result']}/{MANIFEST}")
        what = {
            "kind": kind,
            "study": content,
            "files": [None if name is None else _file_hash(self.base / str(name)) for name in named],
            "source": self.source.identity,
            "setting": {key: value for key, value in asdict(setting).items() if key != "leave_out" or value is not None},
            "seed": seed,
        }
        return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:16]


def parse_axis(text: str) -> SweptKey:
    """Parse ``KEY=V1,V2,...``; a value is TOML, or a bare word.

    Raises:
        Misuse: no key, no value, or a value that stands twice.
    """
    key, equals, rest = text.partition("=")
    values = tuple(_value(part) for part in _split(rest))
    if not key or not equals or not values or any(part == "" for part in key.split(".")):
        raise Misuse(f"{text!r} varies nothing.", "Use KEY=V1,V2,... with a key of the study, as in privacy.epsilon=1,3,none.")
    if len({repr(value) for value in values}) < len(values):
        raise Misuse(f"{text!r} names a value twice.", "Name each value once.")
    return SweptKey(key.strip(), values)


def parse_baseline(text: str, axes: Sequence[SweptKey]) -> tuple[str, Any]:
    """Parse ``KEY=VALUE`` of a varied key and one of its values.

    Raises:
        Misuse: the key is not varied, or does not take the value.
    """
    axis = parse_axis(text)
    varied = {one.key: one for one in axes}
    if axis.key not in varied:
        raise Misuse(f"The baseline's key {axis.key!r} is not varied.", did_you_mean(axis.key, varied))
    if len(axis.values) != 1 or axis.values[0] not in varied[axis.key].values:
        known = ", ".join(shown(value) for value in varied[axis.key].values)
        raise Misuse(f"The baseline {text!r} is not one of the values.", f"{axis.key} takes {known}.")
    values = varied[axis.key].values
    return axis.key, values[values.index(axis.values[0])]


def in_group(key: str) -> bool:
    """Whether a key decides who holds what, or what a record's features are."""
    return key in SETTING_KEYS or key.split(".")[0] == "encoder"


def short(key: str) -> str:
    """The last part of a key."""
    return key.rsplit(".", 1)[-1]


def shown(value: Any) -> str:
    """A value in few letters."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return " ".join(f"{key} {shown(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return " ".join(shown(item) for item in value)
    return str(value)


def _file_hash(path: Path) -> str | None:
    """Hash of a file that a study names; None where it cannot be read, which running the study will say."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _split(text: str) -> Iterator[str]:
    """Cut at the commas that stand outside brackets and quotes."""
    depth, quote, part = 0, "", ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and depth == 0:
            yield part.strip()
            part = ""
            continue
        part += letter
    if part.strip():
        yield part.strip()


def _set(content: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; an epsilon takes the place of whatever else states the noise."""
    *tables, last = key.split(".")
    place = content
    for table in tables:
        place = place.setdefault(table, {})
        if not isinstance(place, dict):
            raise Misuse(f"{key!r} is not a key of the study: {table} is not a table.")
    if key == EPSILON:
        for other in ("epsilon", "error", "max_epsilon"):
            place.pop(other, None)
        if value == NO_NOISE:
            place["noise"] = "none"
            place.pop("cohort_difference", None)
            return
        if place.get("noise") == "none":
            del place["noise"]
    if value in LEFT_OUT:
        place.pop(last, None)
    else:
        place[last] = value
