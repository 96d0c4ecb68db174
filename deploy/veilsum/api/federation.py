"""A federation as an analyst holds it: one behind a coordinator on the network, or a simulated one in this process."""

from __future__ import annotations

import atexit
import os
import tempfile
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from veilsum.access import SETTINGS, AnalystConfig, resolve_access
from veilsum.api.datasets import Dataset
from veilsum.api.notebook import fields_html, plain_text
from veilsum.api.options import Options
from veilsum.api.studies import Run
from veilsum.tables import (
    as_table,
    column_values,
    deal_rows,
    read_sites,
    read_used,
    site_files,
    site_name,
    split_sites,
    write_sites,
)
from veilsum_node.config import did_you_mean, validate
from veilsum_node.errors import ConfigurationError, DataError, Misuse, StateError, VeilsumError, raising
from veilsum_node.identity import Credentials, load_credentials
from veilsum_node.process.steady_clock import now
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.schema_file import load_schema, with_groups

if TYPE_CHECKING:
    from veilsum.coordinator import Coordinator
    from veilsum.remote import StudyInfo

SchemaLike = DatasetSchema | Mapping[str, Any] | str | Path
"""A schema, the file of one, or its content as a mapping."""

Data = Mapping[str, Any] | str | Path | Any
"""Frames or files by site; a folder; or one frame or file."""

DATASET = "records"

_WHOLE = "The whole platform has them, in an environment of its own: pip install veilsum"


_OPEN: weakref.WeakSet[Federation] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close what is still open while gRPC's threads run: a channel that is closed later waits for them forever."""
    for federation in list(_OPEN):
        federation.close()


class Federation:
    """Sites that compute together, and their coordinator. Made by :func:`connect` and :func:`simulate`.

    Usable as a context manager, which closes the connection. Studies that were submitted to a real federation go on.

    Attributes:
        name: of the coordinator.
        credentials: of the analyst.
        schemas: of the datasets that are known by name.
    """

    def __init__(
        self, coordinator: Coordinator, credentials: Credentials, closing: ExitStack, schemas: Mapping[str, DatasetSchema]
    ) -> None:
        self._coordinator, self.credentials, self.schemas = coordinator, credentials, dict(schemas)
        self._closing = closing
        _OPEN.add(self)
        self.name = coordinator.describe().coordinator

    @property
    def coordinator(self) -> Coordinator:
        """The object that asks the coordinator, which is not part of the public API.

        Raises:
            StateError: the federation was closed.

        :meta private:
        """
        if self not in _OPEN:
            raise StateError("The federation was closed.", "Connect, or simulate, again.")
        return self._coordinator

    @property
    def simulated(self) -> bool:
        """Whether the sites are in this process, and end with it."""
        from veilsum.remote import Remote

        return not isinstance(self.coordinator, Remote)

    @property
    def federation_id(self) -> str:
        """Hash of the authority's certificate."""
        return self.credentials.federation_id

    @property
    def participants(self) -> tuple[str, ...]:
        """The sites that are connected now."""
        return self.coordinator.describe().connected

    def dataset(self, name: str | None = None, schema: SchemaLike | None = None, **options: Unpack[Options]) -> Dataset:
        """A dataset of the sites.

        Args:
            name: as the sites offer it; it may be left out where there is one, as in a simulation.
            schema: agreed with the sites: a schema, its file, or its content as a mapping. A simulation knows its own.
            options: of every study of it, unless the study states others, such as ``epsilon=0.5``.

        Raises:
            Misuse: no dataset or schema is named.
            ConfigurationError: the schema or an option is wrong.
        """
        if name is None:
            if len(self.schemas) != 1:
                raise Misuse("No dataset is named.", "Name it as the sites offer it: federation.dataset('records', ...).")
            name = next(iter(self.schemas))
        if not isinstance(name, str):
            raise Misuse(f"A {type(name).__name__} is not a dataset's name.", "Name it as the sites offer it, as a text.")
        if schema is None and name not in self.schemas:
            advice = did_you_mean(name, self.schemas) if self.schemas else ""
            raise Misuse(f"The schema of {name!r} is not known.", advice or "Give it: dataset(name, 'schema.toml').")
        known = self.schemas[name] if schema is None else as_schema(schema)
        return Dataset(self, name, known).with_options(**options)

    def studies(self) -> list[StudyInfo]:
        """Your studies, oldest first."""
        return self.coordinator.list()

    def attach(self, study: str) -> Run:
        """A study that was submitted before, by its id or the first digits of it.

        Raises:
            Misuse: no study or several begin so.
        """
        return Run(self, self.coordinator.find(study).hex())

    def close(self) -> None:
        """Close the connection; a simulation stops, and its ledgers are deleted."""
        _OPEN.discard(self)
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Federation of {self.name!r}: {self._sites()}>"

    def _repr_html_(self) -> str:
        from veilsum.remote import Remote

        kind = "simulated in this process" if not isinstance(self._coordinator, Remote) else "behind a coordinator"
        known = list(self.schemas) or "none by name"
        return fields_html({"coordinator": self.name, "sites": self._sites(), "datasets": known, "kind": kind})

    def _sites(self) -> str:
        """Who is connected, for people; a coordinator that is away is no reason to fail."""
        try:
            return plain_text(self.participants) or "none connected"
        except StateError:
            return "closed"
        except VeilsumError as error:
            return f"not known: {error.message}"


def connect(
    settings: str | Path = SETTINGS, *, coordinator: str | None = None, identity: str | Path | None = None
) -> Federation:
    """Connect to a federation's coordinator as an analyst.

    Args:
        settings: the file that ``veilsum analyst init`` wrote, or its folder.
        coordinator: host:port, in place of the file's.
        identity: directory of key and certificate, in place of the file's.

    Raises:
        ConfigurationError: the file is missing or wrong.
        UnreachableError: nothing listens there, or TLS failed; says which and why.
        HostileInput: the coordinator does not prove its name.
    """
    from veilsum.remote import connect as open_remote

    if not isinstance(settings, str | os.PathLike):
        raise ConfigurationError(f"A {type(settings).__name__} is not a settings file.", f"Give its path, as of {SETTINGS}.")
    path = Path(settings)
    if path.is_dir():
        path /= SETTINGS
    if not path.is_file() and (coordinator is None or identity is None):
        known = ", ".join(AnalystConfig.model_fields)
        raise ConfigurationError(
            f"{path} does not exist.",
            f"`veilsum analyst init` writes one, with the keys {known}. Or give coordinator and identity.",
        )
    access = resolve_access(coordinator, None if identity is None else Path(identity), path)
    credentials = access.credentials(now())
    with ExitStack() as stack:
        remote = stack.enter_context(open_remote(access.route, credentials, access.identity, now()))
        return Federation(remote, credentials, stack.pop_all(), {})


def attach(study: str, settings: str | Path = SETTINGS) -> Run:
    """A study that was submitted earlier, perhaps by a kernel that has ended since.

    Args:
        study: its id, or the first digits of it.
        settings: as of :func:`connect`.

    Raises:
        Misuse: no study or several begin so; and as :func:`connect`.
    """
    federation = connect(settings)
    try:
        return federation.attach(study)
    except BaseException:
        federation.close()
        raise


def simulate(
    data: Data,
    schema: SchemaLike,
    *,
    site_column: str | None = None,
    subject: str | None = None,
    sites: int | None = None,
    seed: int = 0,
    dataset: str = DATASET,
    encoders: Mapping[str, str | Path] | None = None,
) -> Federation:
    """A federation in this process, with records of your own: real noise, real encryption, real ledgers, no network.

    All records are in this process, so nothing is protected from its user; what a study releases is what it would release.

    Args:
        data: sites' frames (or paths) by name; a folder with one CSV, Parquet or npz file a site; or one frame or file,
            whose records ``site_column`` assigns to sites, or ``sites`` deals out at random. A frame is one of pandas or
            polars, an Arrow table, or a mapping of columns.
        schema: with the public bounds: a schema, its file, or its content as a mapping.
        site_column: the column that names each record's site.
        subject: the column that tells which person a record is of, for studies with ``unit="subject"``.
        sites: how many sites to deal records to, where no column names them; 4 by default.
        seed: of that deal. Noise is never seeded.
        dataset: the name that studies give the records.
        encoders: files of frozen encoders that studies may use, by names of your own.

    Raises:
        DataError: a file or column is missing or unreadable, or there are fewer than two sites.
        ConfigurationError: the schema is wrong.
        Misuse: arguments exclude each other.
    """
    with raising(ConfigurationError("This installation has no participants to simulate.", _WHOLE), on=ModuleNotFoundError):
        from veilsum.local.coordinator import LocalCoordinator
        from veilsum.local.sites import make_local

    known = as_schema(schema)
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="veilsum-simulation-")))
        files = _files(data, known, base / "data", site_column, subject, sites, seed)
        named = {name: Path(path) for name, path in (encoders or {}).items()}
        kit, local = make_local(
            base / "federation", files, dataset, now, stack, subject=subject, header=known.header, encoders=named
        )
        coordinator = LocalCoordinator(local, base / "results")
        stack.callback(coordinator.close)
        analyst = load_credentials(kit.analyst.identity, now())
        return Federation(coordinator, analyst, stack.pop_all(), {dataset: known})


def as_schema(schema: SchemaLike) -> DatasetSchema:
    """A schema by itself, by its file or by its content.

    Raises:
        ConfigurationError: it cannot be read or is not valid.
    """
    if isinstance(schema, DatasetSchema):
        return schema
    if isinstance(schema, Mapping):
        return validate(with_groups(schema, Path(), "The schema"), DatasetSchema, source="The schema")
    if not isinstance(schema, str | os.PathLike):
        raise ConfigurationError(f"A {type(schema).__name__} is not a schema.", "Give its file, or its content as a dict.")
    path = Path(schema)
    if path.is_dir():
        raise ConfigurationError(f"{path} is a folder; a schema is a file.", "Name the schema.toml in it.")
    return load_schema(path)


def _files(
    data: Data,
    schema: DatasetSchema,
    directory: Path,
    site_column: str | None,
    subject: str | None,
    sites: int | None,
    seed: int,
) -> dict[str, Path]:
    """Each site's file, written to ``directory`` unless it is one already."""
    if site_column is not None and sites is not None:
        raise Misuse("A column that names the sites leaves nothing to deal out.", "Leave out `sites` or `site_column`.")
    folder = Path(data) if isinstance(data, str | Path) and Path(data).is_dir() else None
    by_site = data if isinstance(data, Mapping) and any(_is_site(value) for value in data.values()) else None
    if (folder or by_site) and (site_column is not None or sites is not None):
        raise Misuse("The sites are there already.", "Leave out `site_column` and `sites`.")
    if folder is not None:
        return _absolute(site_files(folder))
    if by_site is not None:
        if len(by_site) < 2:
            raise DataError("A federation has at least two sites.", "Give a frame or a file for each.")
        paths = {site_name(name): Path(item) for name, item in by_site.items() if isinstance(item, str | Path)}
        frames = {site_name(name): as_table(item, name) for name, item in by_site.items() if not isinstance(item, str | Path)}
        if len(paths) + len(frames) < len(by_site):
            raise DataError("Two sites' names are alike once they are lower-case letters and digits.", "Rename one.")
        return dict(sorted({**_absolute(paths), **write_sites(frames, directory, schema, subject)}.items()))
    return write_sites(_dealt(data, schema, site_column, subject, sites, seed), directory, schema, subject)


def _dealt(
    data: Data, schema: DatasetSchema, site_column: str | None, subject: str | None, sites: int | None, seed: int
) -> dict[str, Any]:
    """The records of one frame or file, by site."""
    if site_column is None and subject is not None:
        raise Misuse("Records that are dealt out at random would scatter a person's over sites.", "Name the site_column.")
    if isinstance(data, str | Path):
        if site_column is not None:
            return read_sites(Path(data), schema, site_column=site_column, subject=subject)
        return deal_rows(as_table(read_used(Path(data), schema).columns, str(data)), sites or 4, seed)
    table = as_table(data, "data")
    if site_column is not None:
        return split_sites(table, column_values(table, site_column, "data"), site_column)
    return deal_rows(table, sites or 4, seed)


def _is_site(value: Any) -> bool:
    """Whether a mapping's value is a site's records, and not a column of one table."""
    if isinstance(value, str | Path | Mapping):
        return True
    return hasattr(value, "columns") or hasattr(value, "column_names")


def _absolute(files: Mapping[str, Path]) -> dict[str, Path]:
    for path in files.values():
        if not path.is_file():
            raise DataError(f"{path} does not exist.", "Check the path.")
    return {name: path.resolve() for name, path in files.items()}
