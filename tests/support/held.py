"""A coordinator's state with a study that has finished and one that is open; and copies of it, to do something with."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from support.durable import NAMES, WIDTH
from support.durable_studies import STUDIES
from support.federation import make_bed, make_data, make_request, schema_of
from support.processes import write_toml
from veilsum_coordinator.results.retirement import HeldStudy, held_studies


class HeldStudies:
    """Two studies of a coordinator in this process: one that has finished, and one that waits for enrolments."""

    def __init__(self, directory: Path) -> None:
        self.bed = make_bed(directory, make_data(NAMES, 24, WIDTH))
        self.results = directory / "results"
        study = STUDIES["fedsgd"](self.bed)
        self.key = bytes(self.bed.local.run(study, self.bed.analyst, self.results).study)
        self.name, self.expires = study.name, study.expires
        self.open = self.bed.local.submit(self.bed.compile(make_request(schema_of(WIDTH))), self.bed.analyst)
        self.database = self.bed.hub.journal.database

    def held(self) -> dict[bytes, HeldStudy]:
        return {item.digest: item for item in held_studies(self.database, self.results)}

    def tables(self) -> dict[str, int]:
        """How many rows every table of the coordinator has of the finished study."""
        found = {}
        with self.database.reading() as connection:
            names = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'").scalars().all()
            for name in names:
                columns = {row[1] for row in connection.exec_driver_sql(f"PRAGMA table_info({name})")}
                column = "study" if "study" in columns else "digest" if name == "coordinator_study" else None
                if name.startswith("coordinator_") and column:
                    query = f"SELECT count(*) FROM {name} WHERE {column} = ?"  # noqa: S608
                    found[name] = connection.exec_driver_sql(query, (self.key,)).scalar_one()
        return found

    def copy(self, directory: Path, **tables: Mapping[str, Any]) -> Path:
        """The state as it lies on the disk, as another coordinator's; returns its ``coordinator.toml``."""
        state = directory / "state"
        state.mkdir(parents=True)
        source = self.bed.kit.coordinator.directory / "coordinator.db"
        with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(state / "coordinator.db")) as two:
            one.backup(two)
        shutil.copytree(self.results, state / "results")
        config = directory / "coordinator.toml"
        write_toml(config, {"": {"state": "state", "identity": str(self.bed.kit.coordinator.identity)}, **tables})
        return config
