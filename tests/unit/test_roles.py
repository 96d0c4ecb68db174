"""What each process may reach follows from the configuration, and from nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from veilsum_node.errors import ConfigurationError
from veilsum_node.process.confinement import Bounds, Offered, reach_fault
from veilsum_node.transport.route import Proxy, Route
from veilsum_participant.checks import CheckOutcome, site_check
from veilsum_participant.session.client import policy_values
from veilsum_participant.session.launcher import Given
from veilsum_participant.settings import roles
from veilsum_participant.settings.config import ParticipantConfig
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.settings.telling import DERIVED
from veilsum_participant.settings.told import plain
from veilsum_participant.worker.remote import offered_bytes

FILE = {"path": Path("/srv/records/a.csv")}
QUERY = {"source": "sql", "query": "select 1", "columns": ("a",), "joined": False}


@pytest.fixture(autouse=True)
def of_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own variables of stores and databases are none of these sites'."""
    for name in [name for name in os.environ if name.startswith(roles._OF_STORES)]:
        monkeypatch.delenv(name)


def config(datasets: dict[str, Any] | None = None, **more: Any) -> ParticipantConfig:
    fields = {"identity": Path("/srv/site/identity"), "state": Path("/srv/state/participant.db"), **more}
    return ParticipantConfig.model_validate(
        {"coordinator": "coordinator.example:8461", "datasets": datasets or {"records": FILE}, **fields}
    )


def test_the_front_dials_one_port_beside_names_and_has_no_file() -> None:
    way = Route("coordinator.example:8461")
    assert roles.front(config(), way) == Bounds(
        network=True,
        dial=(53, 8461),
        apart=(*map(Path, ("/srv/site/identity", "/srv/state/participant.db", "/srv/records/a.csv")),),
    )
    through = Route("coordinator.example:8461", Proxy("proxy.example:3128"))
    assert roles.front(config(), through).dial == (53, 3128)
    assert roles.front(config(metrics={"listen": "127.0.0.1:9465"}), way).listen == ()


def test_the_guard_has_no_network_and_writes_its_state_alone(tmp_path: Path) -> None:
    found = roles.guard(
        config(
            state=tmp_path / "state" / "participant.db",
            policy={"directory": Path("/srv/site/directory.json")},
            log={"file": "/var/log/veilsum/site.log"},  # which its launcher writes
        )
    )
    assert (found.network, found.local, found.forks, found.dial, found.listen) == (False, False, False, (), ())
    assert found.write == (tmp_path / "state",)
    assert set(found.read) == {Path("/srv/site/identity"), Path("/srv/site")}


def test_keys_that_are_handed_over_by_links_are_read_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "credentials").mkdir()
    (tmp_path / "identity").mkdir()
    (tmp_path / "credentials" / "key.pem").touch()
    (tmp_path / "identity" / "key.pem").symlink_to(tmp_path / "credentials" / "key.pem")
    made = config(identity=tmp_path / "identity")
    assert tmp_path / "credentials" in roles.guard(made).read
    for bounds in (roles.front(made, made.route), roles.reader(made, "records"), roles.torch_worker(made)):
        assert {tmp_path / "credentials", tmp_path / "identity"} <= set(bounds.apart)


def test_what_verifies_the_ledger_reads_the_states_file_and_neither_key_nor_record() -> None:
    found = roles.verifier(config())
    place = "/srv/state/participant.db"
    assert found == Bounds(
        read=(*map(Path, (place, f"{place}-wal", f"{place}-shm")),),
        apart=(*map(Path, ("/srv/site/identity", "/srv/records/a.csv")),),
    )


@pytest.mark.parametrize(
    ("offered", "read"),
    [
        (FILE, ["/srv/records/a.csv"]),
        ({"path": Path("/srv/records/parts/*.parquet")}, ["/srv/records/parts"]),
        ({"path": Path("/srv/records/20[0-9]?/x.parquet")}, ["/srv/records"]),
        ({**FILE, "images": {"folder": Path("/srv/scans"), "shape": (1, 8, 8)}}, ["/srv/records/a.csv", "/srv/scans"]),
        (
            {**QUERY, "files": {"a": Path("/srv/a.csv"), "b": Path("/srv/b/*.json")}, "misses_file": Path("/srv/m.sql")},
            ["/srv/a.csv", "/srv/b", "/srv/m.sql"],
        ),
        (
            {**QUERY, "dsn": "sqlite:////srv/x.db"},
            ["/srv/x.db", "/srv/x.db-wal", "/srv/x.db-shm", "/srv/x.db-journal"],
        ),
    ],
)
def test_a_reader_of_files_has_these_files_and_no_network(offered: dict[str, Any], read: list[str]) -> None:
    found = roles.reader(config({"records": offered, "others": {"path": Path("/srv/others.csv")}}), "records")
    assert [str(path) for path in found.read] == read
    assert (found.network, found.local, found.dial, found.write) == (False, False, (), ())
    assert Path("/srv/others.csv") in found.apart


@pytest.mark.parametrize(
    ("url", "dial", "local"),
    [
        ("postgresql://u:p@db.example/x", (53, 5432), False),
        ("postgresql://u:p@db.example:6432/x", (53, 6432), False),
        ("postgresql://u@one:6432,two:6433/x", (53, 6432, 6433), False),
        ("postgresql://u@one:6432,two/x", (53, 5432, 6432), False),
        ("postgresql:///x?host=db.example&port=7000", (53, 5432, 7000), False),
        ("postgresql:///x?host=/run/postgresql", (53, 5432), True),
        ("postgresql:///x", (53, 5432), True),
        ("mysql+pymysql://u:p:q@db.example/x", (53, 3306), False),
        ("firebird://db.example/x", None, True),
    ],
)
def test_a_reader_of_a_database_dials_its_port(url: str, dial: tuple[int, ...] | None, local: bool) -> None:
    found = roles.reader(config({"records": {**QUERY, "dsn": url}}), "records")
    assert (found.dial, found.local, found.network) == (dial, local, True)
    own = {path for path in found.read if path.is_relative_to(Path.home())}
    assert set(found.read) == own
    assert bool(own) == url.startswith("postgresql")


def test_a_reader_of_a_database_reads_what_its_url_and_the_environment_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certificates, say, which a driver opens by itself; a file of another dataset's is not among them."""
    for name in ("root.crt", "client.crt"):
        (tmp_path / name).touch()
    monkeypatch.setenv("PGSSLCERT", str(tmp_path / "client.crt"))
    monkeypatch.setenv("PGPASSWORD", "secret")
    url = f"postgresql://db.example/x?sslmode=verify-full&sslrootcert={tmp_path}/root.crt&options=/nowhere"
    found = roles.reader(config({"records": {**QUERY, "dsn": url}, "b": FILE}), "records")
    assert {tmp_path / "root.crt", tmp_path / "client.crt"} <= set(found.read)
    assert [path for path in found.read if "nowhere" in str(path)] == []
    assert [path for path in roles.reader(config({"records": FILE}), "records").read if tmp_path in path.parents] == []


def test_a_compiler_has_nothing() -> None:
    found = roles.compiler(config())
    assert (found.read, found.write, found.network, found.local, found.forks, found.alters) == ((), (), *[False] * 4)
    apart = ("/srv/site/identity", "/srv/records/a.csv")
    assert {Path(path) for path in apart} <= set(found.apart)


def test_what_serves_metrics_has_its_certificate_alone(tmp_path: Path) -> None:
    """By their folder, for a renewed one takes its place; alone where the folder holds what is not its own."""
    own, identity = tmp_path / "metrics", tmp_path / "identity"
    for folder in (own, identity):
        folder.mkdir()
    served = {"listen": "10.0.0.1:9464", "certificate": own / "c.pem", "key": own / "k.pem", "token_file": identity / "token"}
    made = config(identity=identity, metrics=served)
    found = roles.metrics(made)
    assert (found.write, found.network, found.local, found.forks, found.alters) == ((), *[False] * 4)
    assert found.read == (own, identity / "token")
    assert identity in found.apart
    assert own not in roles.guard(made).read
    assert roles.metrics(config()).read == ()


def test_the_url_in_a_file_counts(tmp_path: Path) -> None:
    (tmp_path / "dsn").write_text("postgresql://db.example:6432/x\n")
    (tmp_path / "dsn").chmod(0o600)
    found = roles.reader(config({"records": {**QUERY, "dsn_file": tmp_path / "dsn"}}), "records")
    assert found.dial == (53, 6432)
    assert found.read[0] == tmp_path / "dsn"


@pytest.mark.parametrize(
    ("store", "dial"),
    [
        ({"endpoint": "https://store.example:9000", "key_file": Path("/srv/keys")}, (53, 9000)),
        ({"key_file": Path("/srv/keys")}, (53, 443)),
        ({}, (53, 80, 443)),
    ],
)
def test_a_reader_of_a_store_dials_that(store: dict[str, Any], dial: tuple[int, ...]) -> None:
    found = roles.reader(config({"records": {"s3": {"url": "s3://bucket/key", **store}}}), "records")
    assert (found.dial, found.local) == (dial, False)
    assert found.read == ((Path("/srv/keys"),) if "key_file" in store else (Path("~/.aws").expanduser(),))


def test_networks_have_encoders_and_devices_and_nothing_else() -> None:
    found = roles.torch_worker(config(encoders={"e": {"path": Path("/srv/encoders/e.pt")}}))
    assert found.read == (Path("/srv/encoders/e.pt"),)
    assert (found.network, found.write, found.devices, found.alters, found.forks) == (False, (), (), False, False)
    assert {Path("/srv/records/a.csv"), Path("/srv/site/identity"), Path("/srv/state/participant.db")} <= set(found.apart)


def test_variables_that_may_hold_secrets_are_kept_from_processes() -> None:
    given = {
        "PATH": "/bin",
        "VEILSUM__DATASETS__A__DSN": "postgresql://u:p@x",
        "AWS_SECRET_ACCESS_KEY": "s",
        "PGPASSWORD": "p",
    }
    given |= {"https_proxy": "http://u:p@proxy:1", "GITHUB_TOKEN": "t"}
    assert roles.environment(given) == {"PATH": "/bin"}
    assert roles.environment(given, stores=True) == {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "s", "PGPASSWORD": "p"}


def test_records_beside_keys_are_within_reach_and_records_in_their_own_folder_are_not(tmp_path: Path) -> None:
    near = config({"records": {"path": tmp_path / "*.parquet"}}, identity=tmp_path / "identity")
    assert reach_fault(roles.reader(near, "records")) is not None
    apart = config({"records": {"path": tmp_path / "data" / "*.parquet"}}, identity=tmp_path / "identity")
    assert reach_fault(roles.reader(apart, "records")) is None


@pytest.mark.parametrize(
    ("isolation", "offered", "status", "said"),
    [
        ("processes", Offered(True, True, 7), CheckOutcome.OK, "version 7 of Landlock"),
        ("processes", Offered(True, True, 2), CheckOutcome.WARNING, "ports of TCP are not restricted"),
        ("processes", Offered(True, True, 0), CheckOutcome.FAILED, "no Landlock"),
        ("none", Offered(True, True, 7), CheckOutcome.WARNING, 'Take out isolation = "none"'),
        ("none", Offered(True, True, 0), CheckOutcome.WARNING, "cannot"),
        (None, Offered(True, True, 7), CheckOutcome.OK, "version 7 of Landlock"),
        (None, Offered(True, True, 0), CheckOutcome.WARNING, "one process holds records, keys and the network"),
        (None, Offered(True, False, 7), CheckOutcome.WARNING, "seccomp"),
    ],
)
def test_the_check_says_what_confines_the_site(
    isolation: str | None, offered: Offered, status: CheckOutcome, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the site is started as it says: confined where the check finds it so, with a reason where the key is silent."""
    for module in (site_check, roles):
        monkeypatch.setattr(module, "offered", lambda: offered)
    made = config(**({} if isolation is None else {"isolation": isolation}))
    rows = site_check.SiteCheck(made, lambda: 0).run(reach=False)
    (row,) = [row for row in rows if row.check == "isolation"]
    assert row.status is status
    assert said in f"{row.detail} {row.advice}"
    why = roles.unconfined(made)
    assert (why is None) == (isolation == "processes" or (isolation is None and offered.landlock > 0 and offered.filters))
    assert bool(why) == (isolation is None and why is not None)


def test_the_check_fails_where_a_process_would_reach_what_it_must_not(tmp_path: Path) -> None:
    near = config({"records": {"path": tmp_path / "*.csv"}}, identity=tmp_path / "identity", isolation="processes")
    rows = [row for row in site_check.SiteCheck(near, lambda: 0).run(reach=False) if row.check == "isolation"]
    assert [row.status for row in rows] == [CheckOutcome.FAILED]
    assert str(tmp_path / "identity") in rows[0].detail


def test_a_site_that_states_nothing_and_cannot_be_divided_is_one_process_and_says_why(tmp_path: Path) -> None:
    if roles.offered().lacking():
        pytest.skip("needs a kernel that confines")
    near = config({"records": {"path": tmp_path / "*.csv"}}, identity=tmp_path / "identity")
    (row,) = [row for row in site_check.SiteCheck(near, lambda: 0).run(reach=False) if row.check == "isolation"]
    assert row.status is CheckOutcome.WARNING
    for said in (f"{row.detail} {row.advice}", roles.unconfined(near)):
        assert str(tmp_path / "identity") in str(said)
    lost = config({"records": {**QUERY, "dsn_file": tmp_path / "nowhere"}})
    assert "nowhere" in str(roles.unconfined(lost))


def test_a_guard_is_told_the_whole_configuration_as_data(tmp_path: Path) -> None:
    """Every key of a kind that JSON has not by itself, and a secret; what is not stated stays so."""
    told = config(
        datasets={
            "records": {**FILE, "schema_file": "/srv/schema.toml", "most_unmatched": 0.25, "header": False},
            "asked": {**QUERY, "dsn": "postgresql://reader:p%C3%A4ss@db/x", "timeout": 30},
            "scans": {**FILE, "images": {"folder": "/srv/scans", "column": "scan", "shape": [1, 28, 28]}},
        },
        metrics={"listen": "127.0.0.1:9465", "token_file": "/srv/token"},
        encoders={"net": {"path": "/srv/net.pt"}},
        budgets={"records": {"epsilon": "unlimited", "delta": 1e-6}, "asked": {"epsilon": 3.0, "delta": 1e-6}},
        hooks={"waiting": ["/usr/bin/logger", "-t", "veilsum"]},
        policy={"trusted": {"oslo": "ab" * 32}, "share_metrics": ["budget"], "four_eyes_above": None},
    )
    bounds = roles.guard(told)
    given = Given(told, bounds, "127.0.0.1:9465", b"\x00a filter\xff")
    again = Given.from_bytes(given.to_bytes())
    assert again[1:] == given[1:]
    assert_same(again.config, told)
    assert again.config.datasets["asked"].dsn == "postgresql://reader:p%C3%A4ss@db/x"  # type: ignore[comparison-overlap]
    assert "reader" not in repr(again.config.datasets["asked"])
    with pytest.raises(AttributeError):  # its launcher reads what the way to the coordinator is made of
        again.config.route  # noqa: B018
    for name, offered in told.datasets.items():
        there = again.config.datasets[name]
        assert again.config.population(name) == told.population(name)
        assert plain([getattr(there, key) for key in DERIVED]) == plain([getattr(offered, key) for key in DERIVED])
        assert offered_bytes(there) == offered_bytes(offered)
        assert DatasetConfig.model_validate_json(offered_bytes(there)) == offered
    assert policy_values(again.config.policy) == policy_values(told.policy)
    other = again.config.model_copy(update={"policy": again.config.policy.model_copy(update={"trusted": {}})})
    assert (other.policy.trusted, again.config.policy.trusted, other.state) == ({}, told.policy.trusted, told.state)
    with pytest.raises(AttributeError):
        again.config.policy.min_cohorts  # type: ignore[attr-defined]  # noqa: B018


def assert_same(there: Any, here: Any) -> None:
    """What a guard is told of a model has every field, with a value of the same kind."""
    if isinstance(here, BaseModel):
        assert [name for name, _ in there] == list(type(here).model_fields)
        for name in type(here).model_fields:
            assert_same(getattr(there, name), getattr(here, name))
    elif isinstance(here, dict):
        assert list(there) == list(here)
        for name in here:
            assert_same(there[name], here[name])
    elif not isinstance(here, SecretStr):
        assert (there, type(there)) == (here, type(here))


def test_a_path_that_no_process_can_be_told_is_named_before_the_guard_has_any(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"donn\xe9es")
    told = config({"records": {**FILE, "path": odd / "records.csv"}})
    given = Given(told, roles.guard(told), "", b"")
    with pytest.raises(ConfigurationError, match=r"donn\\udce9es.* is not UTF-8"):
        given.to_bytes()
