"""An older copy of a site's file, put back behind its back, and the operator's word on it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from support.federation import TestBed, open_test_site
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_participant.protocol.endorsement import trust_coordinator
from veilsum_participant.site import Site


def copy_database(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as two:
        one.backup(two)


def put_file(state: Path, copy: Path) -> None:
    """Put a copy in the place of a file that nobody has open."""
    for suffix in ("-wal", "-shm"):
        state.with_name(state.name + suffix).unlink(missing_ok=True)
    state.write_bytes(copy.read_bytes())


def restore(bed: TestBed, name: str, copy: Path) -> Site:
    """Put an older copy of a site's file back and open it as a new process would."""
    site = bed.sites[name]
    site.database.close()
    put_file(site.config.state, copy)
    bed.sites[name] = open_test_site(site.config, bed.clock, SYSTEM_RANDOM)
    return bed.sites[name]


def vouch(site: Site) -> None:
    """The operator's word that the copy is the site: what its receipts show was signed with another ledger than this one."""
    trust_coordinator(site, "put back by hand", "operator")
    site.lift_trusted()
    assert site.restored() is None
