"""Run a component's Alembic scripts on a connection that holds the write lock; imported only where there is something to run.

It needs neither a configuration file nor an environment script: scripts are found in their package, versions are counted in
the component's own table, and everything happens inside the caller's transaction.
"""

from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from typing import Any

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationStep
from alembic.script import ScriptDirectory
from alembic.script.revision import ResolutionError
from alembic.util.exc import CommandError
from sqlalchemy import Connection

from veilsum_node.driver_faults import newer_version, unreleased_version


def upgrade(connection: Connection, package: str, component: str, found: str) -> None:
    """Run what lies between version ``found`` and the last one.

    Raises:
        StateError: the tables are of a newer version, or of one that was never released.
    """
    script = scripts(package)
    try:
        script.get_revision(found)
    except (CommandError, ResolutionError) as error:
        older = found < max(script.get_heads())
        raise (unreleased_version if older else newer_version)(component, found) from error

    def steps(revision: Any, _context: Any) -> Any:
        revisions = script.iterate_revisions("head", revision)
        return [MigrationStep.upgrade_from_script(script.revision_map, item) for item in reversed([*revisions])]

    run: Callable[..., Any] = steps
    with EnvironmentContext(Config(), script, fn=run) as environment:
        environment.configure(connection=connection, version_table=f"{component}_version")
        environment.run_migrations()


@lru_cache
def scripts(package: str) -> ScriptDirectory:
    """The scripts in a package's ``versions``."""
    return ScriptDirectory(str(files(package)))
