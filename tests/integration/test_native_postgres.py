"""PostgreSQL as `make deploy-local` runs it: from the system's programs and from those of the development package."""

from __future__ import annotations

import socket
from pathlib import Path

import psycopg
import pytest

from local import postgres
from local.processes import LocalProcesses, run
from local.tools import find_tool
from support.network import wait_for
from support.processes import lasting_port


@pytest.mark.system  # support/postgres.py makes clusters for other tests by default
@pytest.mark.parametrize("source", ["system", "package"])
def test_a_cluster_is_made_served_with_a_password_and_removed(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if source == "package":
        monkeypatch.setattr(postgres, "find_tool", lambda _: None)
    elif find_tool("initdb") is None:
        pytest.skip("no PostgreSQL is installed on this machine: the package's is tried")
    (tmp_path / "password").write_text("s3cret")
    environment = {
        "POSTGRES_USER": "veilsum",
        "POSTGRES_DB": "trial",
        "POSTGRES_PASSWORD_FILE": str(tmp_path / "password"),
        "POSTGRES_INITDB_ARGS": "--auth-host=scram-sha-256 --auth-local=scram-sha-256",
    }
    cluster, port, log = postgres.make_place(tmp_path / "data" / "pgdata"), lasting_port(), tmp_path / "log"
    (tmp_path / "data").mkdir()
    try:
        postgres.initialise(cluster, environment, log)
        check = postgres.ready(cluster, ["pg_isready", "--host=127.0.0.1", "--username=veilsum", "--dbname=trial"], port)
        assert run(check, tmp_path / "health", 30) != 0
        with LocalProcesses() as processes:
            processes.start("database", postgres.server(cluster, (), port), log, 30)
            wait_for(lambda: run(check, tmp_path / "health", 30) == 0, "the server")
            place = {"host": "127.0.0.1", "port": port, "user": "veilsum", "dbname": "trial", "connect_timeout": 10}
            with psycopg.connect(**place, password="s3cret") as connection:  # type: ignore[arg-type]
                assert connection.execute("SELECT current_database()").fetchone() == ("trial",)
            with pytest.raises(psycopg.OperationalError, match="password"):
                psycopg.connect(**place, password="wrong")  # type: ignore[arg-type]
        assert processes.statuses == {"database": 0}
        assert not list(cluster.sockets.glob("password"))
    finally:
        postgres.remove(cluster)
    assert not cluster.sockets.exists()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
