"""Who holds what in the demo: records of four hospitals, or of the sites in a folder, and held-out records that nobody holds.

The split of the packaged data is fixed and public: it belongs to the demo, not to the federation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from veilsum.tables import site_files, site_name
from veilsum_deploy.datasets import TableWithSchema, packaged_dataset, read_dataset
from veilsum_deploy.simulation.partition import hold_out
from veilsum_node.errors import DataError, Misuse
from veilsum_privacy.study.schema_file import load_schema

SEED = 20
"""Seed of every split in the demo."""

HOSPITALS: Mapping[str, tuple[int, int]] = {"north": (20, 140), "east": (76, 54), "south": (45, 49), "west": (15, 20)}
"""Malignant and benign patients at each hospital, of 212 and 357; the other 56 and 94 are held out."""

HELD_OUT = 0.2
RESERVED = {"coordinator", "analyst", "operator"}
MAX_SITES = 16


@dataclass(frozen=True)
class Hospitals:
    """The demo's data.

    Attributes:
        source: one line on where it comes from and how it is split.
        sites: each site's records by its name.
        held_out: records for testing.
        tests: the same records by the site that they come from; empty where they come from none.
    """

    source: str
    sites: dict[str, TableWithSchema]
    held_out: TableWithSchema
    tests: dict[str, TableWithSchema] = field(default_factory=dict)


def packaged_hospitals() -> Hospitals:
    """Wisconsin breast cancer, dealt to four hospitals of unequal size and class balance."""
    dataset = packaged_dataset("breast-cancer")
    rng = np.random.default_rng(SEED)
    queues = [list(rng.permutation(np.flatnonzero(dataset.classes == index))) for index in (0, 1)]
    sites = {}
    for name, counts in HOSPITALS.items():
        rows = [queue.pop() for queue, count in zip(queues, counts, strict=True) for _ in range(count)]
        sites[name] = dataset.take(np.sort(np.array(rows, dtype=np.int64)))
    rest = np.sort(np.array([row for queue in queues for row in queue], dtype=np.int64))
    sizes = ", ".join(f"{name} {sum(counts)}" for name, counts in HOSPITALS.items())
    source = f"Wisconsin breast cancer, 569 patients: {sizes}; {len(rest)} held out for testing"
    return Hospitals(source, sites, dataset.take(rest))


def folder_hospitals(directory: Path, schema_file: Path | None, *, trains: bool = True) -> Hospitals:
    """One site for each data file in a folder; if records have a label, a fifth of each class at each site is held out.

    Args:
        directory: one file a site, as :func:`veilsum.tables.site_files` finds them.
        schema_file: by default ``schema.toml`` in the folder.
        trains: whether a classifier will be, which needs a label.

    Raises:
        Misuse: more than :data:`MAX_SITES` data files, or one that is named as a party of another role.
        ConfigurationError, DataError: schema or data are not in order, or there are fewer than two files.
    """
    files = site_files(directory)
    schema = load_schema(schema_file or directory / "schema.toml")
    if schema.label is None and trains:
        raise DataError("The schema has no label, and the demo trains a classifier.", "Add a [label] table with classes.")
    if len(files) > MAX_SITES:
        raise Misuse(f"{directory} holds {len(files)} data files; the demo takes {MAX_SITES} at most.", "Leave some out.")
    name = site_name(directory.resolve().name)
    sites: dict[str, TableWithSchema] = {}
    held: dict[str, TableWithSchema] = {}
    for site, path in files.items():
        if site in RESERVED:
            raise Misuse(f"The file {path.name} gives the site name {site!r}, which is taken.", "Rename the file.")
        dataset = read_dataset(path, schema, name)
        kept, tested = hold_out(dataset.classes, HELD_OUT if schema.label else 0.0, SEED)
        if not len(kept):
            raise DataError(f"{path} holds no record.", "Every site needs records.")
        sites[site] = dataset.take(kept)
        held[site] = dataset.take(tested)
    tables = [dataset.table for dataset in held.values()]
    held_out = TableWithSchema(name, schema, pa.concat_tables(tables, promote_options="permissive"))
    sizes = ", ".join(f"{site} {dataset.table.num_rows}" for site, dataset in sites.items())
    source = f"{directory}: {sizes}; {held_out.table.num_rows} held out for testing"
    return Hospitals(source, sites, held_out, held if schema.label else {})
