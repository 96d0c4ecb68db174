"""Records of several domains, of published collections or of one's own, each domain with records to test on.

A collection is for evaluations. Its files are read as they were published; nothing is downloaded and nothing is fitted to the
records: every feature is a fixed function of its own record, and every bound is public.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from veilsum.tables import SUFFIXES, read_records, read_sites, rows_by_name, site_name
from veilsum_deploy.data_names import COLLECTIONS
from veilsum_deploy.datasets import Rows, TableWithSchema, read_dataset
from veilsum_node.config import did_you_mean
from veilsum_node.errors import ConfigurationError, DataError, Misuse
from veilsum_participant.data.sources import read_table
from veilsum_participant.settings.declared_files import declared
from veilsum_privacy.study.schema import ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.study.schema_file import load_schema

TEST_SHARE = 0.3
"""Share of each class that is held out of a domain that comes without records to test on, unless the caller says otherwise."""

SQUARE_ROOT_BOUND = 0.25
"""Public bound of the square root of a visual word's frequency; one in a thousand lies beyond it and is clamped."""

_DIGITS = ("mnist", "usps", "semeion", "optdigits")
_OFFICE = ("amazon", "caltech", "dslr", "webcam")
_HEART = ("cleveland", "hungarian", "switzerland", "va")


@dataclass(frozen=True)
class Domain:
    """Records of one origin.

    Attributes:
        name: a valid site name.
        test: what a classifier is tested on; None where the source has no such split, so that each run holds its own out.
        sites: by name, the rows of ``train`` of each site, where the source tells sites of the domain apart.
    """

    name: str
    train: TableWithSchema
    test: TableWithSchema | None
    sites: Mapping[str, Rows] = field(default_factory=dict)


@dataclass(frozen=True)
class Collection:
    """Domains of one schema.

    Attributes:
        schema: of all its domains.
        domains: in a fixed order.
    """

    name: str
    schema: DatasetSchema
    domains: tuple[Domain, ...]

    def with_schema(self, schema: DatasetSchema) -> "Collection":
        """The same tables under a schema that a study brings along."""

        def under(table: TableWithSchema) -> TableWithSchema:
            return replace(table, schema=schema)

        domains = tuple(
            replace(domain, train=under(domain.train), test=None if domain.test is None else under(domain.test))
            for domain in self.domains
        )
        return Collection(self.name, schema, domains)


def load_collection(name: str, path: Path) -> Collection:
    """Read a collection of :data:`COLLECTIONS` from its folder.

    Raises:
        ConfigurationError: no collection has this name.
        DataError: a file is missing or is not as published.
    """
    if name not in _READERS:
        raise ConfigurationError(f"No collection is called {name!r}.", did_you_mean(name, COLLECTIONS))
    return _READERS[name](path)


def single(dataset: TableWithSchema) -> Collection:
    """One table as a collection of one domain, named as the data set."""
    return Collection(dataset.name, dataset.schema, (Domain(dataset.name, dataset, None),))


def own_sites(
    source: Path,
    schema: DatasetSchema,
    name: str,
    *,
    site_column: str | None = None,
    domain_column: str | None = None,
    subject: str | None = None,
    dialect: Sequence[str] = (),
) -> Collection:
    """Records of one's own in domains.

    Args:
        source: a folder of one file a domain, a folder of one folder a domain that holds one file a site, or one file.
        site_column: the file's column that names the site of each record; without ``domain_column`` each site is a domain.
        domain_column: the file's column that names the domain of each record.
        subject: a further column, which tells whose record each is.
        dialect: how its files are written (:func:`veilsum_participant.settings.dataset_config.declared`).

    Raises:
        DataError: a file or column is missing or unreadable, a record names no site or domain, there are fewer than two, or
            a site has records of two domains.
        Misuse: a column of sites or domains for a folder.
    """

    def domain_of(own: str, table: pa.Table, sites: Mapping[str, Rows]) -> Domain:
        return Domain(own, TableWithSchema(name, schema, table, subject), None, sites)

    if source.is_dir() and domain_column is not None:
        advice = "Leave the domain column out, or name one file."
        raise Misuse(f"{source} is a folder, whose files or folders are the domains.", advice)
    if source.is_dir() and site_column is None and (folders := _domain_folders(source)):
        joined = [
            _joined(domain, read_sites(path, schema, subject=subject, least=1, dialect=dialect))
            for domain, path in folders.items()
        ]
        _require_distinct([site for _, _, sites in joined for site in sites])
        found = [domain_of(*parts) for parts in joined]
    elif domain_column is None:
        tables = read_sites(source, schema, site_column=site_column, subject=subject, dialect=dialect)
        found = [domain_of(site, table, {}) for site, table in tables.items()]
    else:
        file = declared(source, dialect)
        table = read_records(file, schema, subject)
        rows = rows_by_name(read_table(file, schema, subject=domain_column).subjects, domain_column, "domain")
        sites: dict[str, Rows] = {}
        if site_column is not None:
            sites = rows_by_name(read_table(file, schema, subject=site_column).subjects, site_column, "site")
        found = [domain_of(domain, table.take(own), _within(sites, own, domain)) for domain, own in rows.items()]
    return Collection(name, schema, tuple(found))


def _domain_folders(folder: Path) -> dict[str, Path]:
    """Folders in a folder that holds no files of records itself, by the names of their domains."""
    if any(path.suffix.lower() in SUFFIXES for path in folder.iterdir() if path.is_file()):
        return {}
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    _require_distinct([site_name(path.name) for path in folders])
    return {site_name(path.name): path for path in folders}


def _joined(domain: str, tables: Mapping[str, pa.Table]) -> tuple[str, pa.Table, dict[str, Rows]]:
    """A domain's tables as one, and the rows of each of its sites, whose names begin with the domain's."""
    ends = np.cumsum([0, *(table.num_rows for table in tables.values())])
    names = [site_name(f"{domain}-{site}") for site in tables]
    rows = {name: np.arange(start, end) for name, start, end in zip(names, ends[:-1], ends[1:], strict=True)}
    return domain, pa.concat_tables(list(tables.values()), promote_options="permissive"), rows


def _within(sites: Mapping[str, Rows], own: Rows, domain: str) -> dict[str, Rows]:
    """The sites of a domain, which has the rows ``own`` of the whole, by rows among these."""
    found = {name: np.flatnonzero(np.isin(own, rows)) for name, rows in sites.items() if np.isin(rows, own).any()}
    for name, rows in found.items():
        if len(rows) < len(sites[name]):
            raise DataError(f"Site {name!r} has records of {domain!r} and of another domain.", "A site belongs to one domain.")
    return found


def _require_distinct(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"Two folders or sites would be named {twice[0]!r}.", "Rename one of them.")


def _digits4(path: Path) -> Collection:
    """Four origins of handwritten digits, 16 x 16 grey levels."""
    names = [f"{domain}_{part}_{split}" for domain in _DIGITS for part in "Xy" for split in ("train", "test")]
    arrays = _arrays(path / "digits4_16.npz", names)
    return _digits("digits4", 16, {domain: [arrays[f"{domain}_{part}"] for part in _PARTS] for domain in _DIGITS})


def _mnist(path: Path) -> Collection:
    """MNIST, 28 x 28 grey levels."""
    arrays = _arrays(path / "mnist.npz", _PARTS)
    return _digits("mnist", 28, {"mnist": [arrays[part] for part in _PARTS]})


_PARTS = ("X_train", "y_train", "X_test", "y_test")


def _digits(name: str, side: int, domains: dict[str, list[NDArray[Any]]]) -> Collection:
    columns = tuple(
        NumberColumn(name=f"pixel_{row}_{column}", low=0, high=255) for row in range(side) for column in range(side)
    )
    schema = _labelled(columns, [f"digit-{digit}" for digit in range(10)], max(len(parts[0]) for parts in domains.values()))
    read = []
    for domain, (x_train, y_train, x_test, y_test) in domains.items():
        train, test = _table(name, schema, x_train, y_train), _table(name, schema, x_test, y_test)
        read.append(Domain(domain, train, test))
    return Collection(name, schema, tuple(read))


def _office_caltech10(path: Path) -> Collection:
    """Office-Caltech10 as 800 SURF visual words: the square root of each word's share of its image's words.

    The square root of shares has norm 1 for every image, so a clip norm of 1 / :data:`SQUARE_ROOT_BOUND` loses nothing.
    """
    bound = SQUARE_ROOT_BOUND
    columns = tuple(NumberColumn(name=f"word_{number}", low=-bound, high=bound) for number in range(800))
    read = {}
    for domain in _OFFICE:
        words, labels = _matlab(path / f"{domain}_SURF_L10.mat")
        read[domain] = (np.sqrt(words / np.maximum(words.sum(axis=1, keepdims=True), 1.0)), labels)
    schema = _labelled(columns, [f"class-{number}" for number in range(1, 11)], max(len(y) for _, y in read.values()), first=1)
    domains = [Domain(domain, _table("office-caltech10", schema, x, y), None) for domain, (x, y) in read.items()]
    return Collection("office-caltech10", schema, tuple(domains))


def _heart_disease(path: Path) -> Collection:
    """UCI Heart Disease, four hospitals, with the packaged schema."""
    with resources.as_file(resources.files("veilsum_deploy") / "demo_data" / "heart_disease.toml") as file:
        schema = load_schema(file)
    domains = [
        Domain(domain, read_dataset(path / f"processed.{domain}.data", schema, "heart-disease"), None) for domain in _HEART
    ]
    return Collection("heart-disease", schema, tuple(domains))


_READERS: dict[str, Callable[[Path], Collection]] = {
    "digits4": _digits4,
    "office-caltech10": _office_caltech10,
    "heart-disease": _heart_disease,
    "mnist": _mnist,
}


def _labelled(columns: tuple[NumberColumn, ...], classes: Sequence[str], records: int, first: int = 0) -> DatasetSchema:
    """Classes numbered from ``first`` in the column "label"."""
    values = tuple(ClassValues(name=name, values=(str(first + number),)) for number, name in enumerate(classes))
    return DatasetSchema(columns=columns, label=LabelColumn(column="label", classes=values), max_records=records)


def _table(name: str, schema: DatasetSchema, x: NDArray[Any], labels: NDArray[Any]) -> TableWithSchema:
    """Records (n, ...) and labels (n,) as the schema's columns, as the participant's reader would have read them."""
    flat = np.asarray(x).reshape(len(x), -1)
    if flat.shape[1] != len(schema.columns) or labels.shape != (len(flat),) or schema.label is None:
        raise DataError(f"The files of {name} are not of the published shape.", "Use the files as they were published.")
    by_column = np.ascontiguousarray(flat.T, dtype=np.float64)
    columns = {column.name: by_column[index] for index, column in enumerate(schema.columns)}
    return TableWithSchema(name, schema, pa.table({**columns, schema.label.column: labels.astype(np.int64).astype(str)}))


def _arrays(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    _require(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in names}
    except (ValueError, OSError, KeyError) as error:
        raise DataError(f"{path}: does not hold the arrays of the collection.", f"It needs {', '.join(names)}.") from error


def _matlab(path: Path) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Visual words (n, 800) and labels (n,) of a .mat file."""
    _require(path)
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(path, variable_names=["fts", "labels"])
        return content["fts"].astype(np.float64), content["labels"].astype(np.int64).reshape(-1)
    except (MatReadError, ValueError, OSError, KeyError, TypeError) as error:
        raise DataError(f"{path} holds no arrays `fts` and `labels`.", "Use the files as they were published.") from error


def _require(path: Path) -> None:
    if not path.is_file():
        raise DataError(f"{path} does not exist.", "Name the folder that holds the collection's published files.")
