"""Parquet and CSV in S3: held against the same records in files, at a server on this machine that speaks S3's protocol."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from pyarrow import fs
from pydantic import ValidationError

from support.federation import DATASET, make_bed, make_data, make_request
from support.network import wait_for
from support.processes import lasting_port
from support.tables import SCHEMA, places, rows_of, totals
from support.tools import need_tool
from veilsum_node.errors import ConfigurationError, DataError, Unavailable
from veilsum_participant.data import check_dataset, check_structure, csv_files, load_records
from veilsum_participant.data.sources import read_table
from veilsum_participant.data.stream import stream_records
from veilsum_participant.settings.config import load_participant_config
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.settings.query import Bucket, origin
from veilsum_privacy.tasks.base import join_batches

ODD = b"\n".join(
    [
        b"who,age,town,ill",
        *[b"p1,60,K\xc3\xb6ln,0", b'p2,"61",Ulm,1', b"p1,1e400,?,2", b"p3,x,Ulm", b'"p,4","7",Ulm,1', b'p5,"8,Ulm,1'] * 9,
        b"",
        b"p1,70,K\xf6ln,0",
    ]
)
"""Lines of CSV that are records, and some that are none."""

KEYS = "AKIAEXAMPLE\nsecret-of-the-key\n"


def table(first: int, rows: int) -> pa.Table:
    numbers = range(first, first + rows)
    return pa.table(
        {
            "who": [f"p{number % 5}" for number in numbers],
            "age": [None if number % 7 == 0 else float(number) for number in numbers],
            "town": [("Köln", "Ulm", "Bonn")[number % 3] for number in numbers],
            "ill": [str(number % 2) for number in numbers],
        }
    )


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def serve(directory: Path, *options: str) -> Iterator[int]:
    """The port of a server that speaks S3 and holds nothing yet."""
    program = need_tool("moto_server")
    port = lasting_port()  # it cannot be told to take any, and one that the system hands out may be another's by then
    log = (directory / "log").open("w")
    server = subprocess.Popen([str(program), "-H", "127.0.0.1", "-p", str(port), *options], stdout=log, stderr=log)
    try:
        wait_for(lambda: server.poll() is not None or _answers(port), "the server")
        assert server.poll() is None, (directory / "log").read_text()
        yield port
    finally:
        server.kill()
        server.wait()
        log.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a server with three objects of Parquet below a folder, beside others."""
    with serve(tmp_path_factory.mktemp("s3")) as port:
        client: dict[str, Any] = {"scheme": "http", "endpoint_override": f"127.0.0.1:{port}", "region": "eu-central-1"}
        key, secret = KEYS.split()
        made = fs.S3FileSystem(
            access_key=key, secret_key=secret, allow_bucket_creation=True, allow_delayed_open=True, **client
        )
        made.create_dir("hospital")
        for name, part in (("2024/01", table(0, 40)), ("2024/02", table(40, 30)), ("2025/01", table(70, 10))):
            parquet.write_table(part, f"hospital/visits/{name}.parquet", filesystem=made, row_group_size=8)
        for folder, beside in (("delta", "_delta_log/0.json"), ("iceberg", "metadata/1.metadata.json"), ("torn", "notes")):
            for name in ("data/p.parquet", "_temporary/p.parquet" if folder == "torn" else "data/q.parquet"):
                parquet.write_table(table(0, 5), f"hospital/{folder}/{name}", filesystem=made)
            with made.open_output_stream(f"hospital/{folder}/{beside}") as file:
                file.write(b"{}")
        with made.open_output_stream("hospital/visits/notes.txt") as file:
            file.write(b"no records")
        with made.open_output_stream("hospital/visits/2024/odd.csv") as file:
            file.write(ODD)
        yield f"http://127.0.0.1:{port}"


def keys(directory: Path, text: str = KEYS, mode: int = 0o600) -> Path:
    (directory / "s3.key").write_text(text)
    (directory / "s3.key").chmod(mode)
    return directory / "s3.key"


def bucket(url: str, store: str, directory: Path) -> Bucket:
    return Bucket(url, store, "eu-central-1", keys(directory))


@pytest.mark.system
@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("url", "rows"),
    [
        ("s3://hospital/visits", 80),
        ("s3://hospital/visits/", 80),
        ("s3://hospital/visits/2024/*.parquet", 70),
        ("s3://hospital/visits/202?/01.parquet", 50),
        ("s3://hospital/visits/2025/01.parquet", 10),
    ],
)
@pytest.mark.parametrize("subject", [None, "who"])
def test_objects_are_read_as_files_are(tmp_path: Path, store: str, url: str, rows: int, subject: str | None) -> None:
    first = {"s3://hospital/visits/2025/01.parquet": 70}.get(url, 0)
    whole = pa.concat_tables([table(0, 40), table(70, 10)]) if rows == 50 else table(first, rows)
    parquet.write_table(whole, tmp_path / "whole.parquet")
    source = bucket(url, store, tmp_path)
    check_structure(source, SCHEMA, subject=subject, header=True)
    want = read_table(tmp_path / "whole.parquet", SCHEMA, subject=subject)
    assert rows_of(read_table(source, SCHEMA, subject=subject)) == rows_of(want)
    records, _ = load_records(source, SCHEMA, subject)
    batches = join_batches(stream_records(source, SCHEMA, subject, rows=7, persons=20))
    for name in ("features", "present", "labels", "subjects"):
        assert str(getattr(batches, name)) == str(getattr(records, name))
    report = check_dataset(source, SCHEMA)
    assert report.records == rows
    assert report.findings == check_dataset(tmp_path / "whole.parquet", SCHEMA).findings


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://hospital/delta", "is a table of Delta Lake, Iceberg or Hudi"),
        ("s3://hospital/iceberg/*/*.parquet", "is a table of Delta Lake, Iceberg or Hudi"),
        ("s3://hospital/torn", r"holds Parquet in names that begin with \. or _"),
    ],
)
def test_objects_that_are_not_all_records_are_refused_by_name(tmp_path: Path, store: str, url: str, said: str) -> None:
    for read in (check_structure, read_table):
        with pytest.raises(DataError, match=said):
            read(bucket(url, store, tmp_path), SCHEMA)
    assert read_table(bucket("s3://hospital/torn/data/*.parquet", store, tmp_path), SCHEMA).rows == 5


@pytest.mark.parametrize("subject", [None, "who"])
def test_an_object_of_csv_is_read_as_a_file_is(
    tmp_path: Path, store: str, subject: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_files, "BATCH", 100)
    (tmp_path / "odd.csv").write_bytes(ODD)
    source = bucket("s3://hospital/visits/2024/odd.csv", store, tmp_path)
    check_structure(source, SCHEMA, subject=subject, header=True)
    want, found = (load_records(place, SCHEMA, subject) for place in (tmp_path / "odd.csv", source))
    assert found[1] == want[1]
    batches = join_batches(stream_records(source, SCHEMA, subject, rows=7, persons=20))
    for name in ("features", "present", "labels", "subjects"):
        np.testing.assert_array_equal(getattr(found[0], name), getattr(want[0], name))
        np.testing.assert_array_equal(getattr(batches, name), getattr(want[0], name))
    here, there = (check_dataset(place, SCHEMA) for place in (tmp_path / "odd.csv", source))
    assert there.findings == here.findings
    assert sum(totals(there)[None].values()) == 18
    assert (3, 4, "age") in [place[:3] for place in places(there)]
    with pytest.raises(DataError, match="its owner, that it holds records"):
        check_structure(source, SCHEMA, header=False)
    with pytest.raises(DataError, match="column 'whose' is missing"):
        check_structure(source, SCHEMA, subject="whose")
    with pytest.raises(DataError, match="there is no such object"):
        check_structure(replace(source, url="s3://hospital/visits/none.csv"), SCHEMA)


def test_a_site_takes_part_with_a_bucket(tmp_path: Path, store: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its release is that of the same records in a file; memory of 1 MiB makes it read the bucket in batches."""
    agreed = SCHEMA.model_copy(update={"max_records": 100_000})
    parquet.write_table(table(0, 80), tmp_path / "whole.parquet")
    offered = {"path": tmp_path / "whole.parquet"}
    place = {"url": "s3://hospital/visits", "endpoint": store, "region": "eu-central-1", "key_file": keys(tmp_path)}
    found = []
    (tmp_path / "whole.csv").write_bytes(ODD)
    lines = {"url": "s3://hospital/visits/2024/odd.csv"}
    for name, one in {
        "file": offered,
        "s3": {"s3": place},
        "batches": {"s3": place, "memory": 1},
        "csv": {"path": tmp_path / "whole.csv", "columns": ("age", "town", "ill")},
        "csv in s3": {"s3": place | lines, "memory": 1, "columns": ("age", "town", "ill")},
    }.items():
        bed = make_bed(tmp_path / name, make_data("ab"))
        bed.know_noise()
        for site, dataset in (("a", one), ("b", offered)):
            datasets = {DATASET: DatasetConfig.model_validate(dataset)}
            bed.sites[site].config = bed.sites[site].config.model_copy(update={"datasets": datasets})
        key = bed.local.submit(bed.compile(make_request(agreed)), bed.analyst)
        values = bed.local.prepare(key).sum("statistics").values
        found.append({name: np.ravel(block).tolist() for name, block in values.items()})
        assert "failed on this site's records" not in caplog.text
    assert found[0] == found[1] == found[2]
    assert found[3] == found[4]


def test_a_store_proves_its_name_by_the_certificates_that_the_site_names(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "store")]), datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 7, now, now + datetime.timedelta(days=1))
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = made.add_extension(names, False).add_extension(x509.BasicConstraints(True, None), True)
    own = tmp_path / "ca.pem"
    own.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    (tmp_path / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with serve(tmp_path, "-s", "-c", str(own), "-k", str(tmp_path / "key.pem")) as port:
        one = bucket("s3://hospital/visits", f"https://127.0.0.1:{port}", tmp_path)
        with pytest.raises(Unavailable):
            check_structure(one, SCHEMA)
        with pytest.raises(DataError, match=r"no Parquet object has such a name|cannot be read"):
            check_structure(replace(one, ca_file=own), SCHEMA)  # it is heard, and holds nothing


def test_keys_come_from_the_environment_too(tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key, secret = KEYS.split()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    check_structure(Bucket("s3://hospital/visits", store, "eu-central-1"), SCHEMA)


@pytest.mark.parametrize("url", ["s3://hospital/nothing", "s3://hospital/visits/*.csv", "s3://nowhere/visits"])
def test_what_is_not_there_is_a_fault_of_structure(tmp_path: Path, store: str, url: str) -> None:
    with pytest.raises(DataError, match=r"no Parquet object has such a name|cannot be read"):
        check_structure(bucket(url, store, tmp_path), SCHEMA)


def test_a_column_that_is_missing_is_named(tmp_path: Path, store: str) -> None:
    with pytest.raises(DataError, match="column 'whose' is missing"):
        check_structure(bucket("s3://hospital/visits", store, tmp_path), SCHEMA, subject="whose")


def test_a_store_that_is_away_is_waited_for(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(Unavailable, match="cannot be reached"):
            check_structure(bucket("s3://hospital/visits", away, tmp_path), SCHEMA)


@pytest.mark.parametrize(("text", "mode"), [(KEYS, 0o644), ("alone\n", 0o600), ("ö ü\n", 0o600)])
def test_keys_are_a_private_file_of_two_words(tmp_path: Path, text: str, mode: int) -> None:
    with pytest.raises(ConfigurationError, match="S3 key") as caught:
        check_structure(Bucket("s3://a/b", "http://127.0.0.1:1", "", keys(tmp_path, text, mode)), SCHEMA)
    assert "secret-of" not in repr(caught.value)


def test_participant_toml_names_bucket_and_keys(tmp_path: Path) -> None:
    (tmp_path / "participant.toml").write_text(
        'coordinator = "hub.example:8461"\n[datasets.heart]\nsubject = "who"\n[datasets.heart.s3]\nurl = "s3://hospital/visits"\n'
        'endpoint = "https://store.example:9000"\nkey_file = "s3.key"\nca_file = "ca.pem"\n'
    )
    source = origin(load_participant_config(tmp_path / "participant.toml").datasets["heart"], "heart")
    want = Bucket("s3://hospital/visits", "https://store.example:9000", "", tmp_path / "s3.key", tmp_path / "ca.pem")
    assert source == want
    for wrong in (
        {"path": "x.parquet", "s3": {"url": "s3://a/b"}},
        {},
        {"s3": {"url": "s3://a"}},
        {"s3": {"url": "https://a/b"}},
        {"s3": {"url": "s3://*/b"}},
        {"s3": {"url": "s3://a/b", "endpoint": "http://store.example:9000"}},
        {"s3": {"url": "s3://a/b", "endpoint": "https://key:secret@store.example"}},
        {"source": "sql", "query": "SELECT 1", "s3": {"url": "s3://a/b"}},
    ):
        with pytest.raises(ValidationError):
            DatasetConfig.model_validate(wrong)
