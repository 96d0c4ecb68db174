"""Datasets that another process reads: the same records to the bit; and whatever that process does, a site's guard goes on."""

from __future__ import annotations

import array
import fcntl
import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from support.apart import Answer, RawStarter, ThreadStarter
from support.federation import schema_of
from support.starting import Child, ProcessStarter
from veilsum_node.errors import ConfigurationError, DataError, RefusalCode, Unavailable, VeilsumError
from veilsum_participant.boundary.encoding import Inquiry, Message
from veilsum_participant.boundary.framing import SealedMemory, pair
from veilsum_participant.boundary.reader import (
    AskShare,
    BeginRows,
    CheckStructure,
    FaultKind,
    LoadRows,
    NextRows,
    OpenDataset,
    SealedRows,
    UnmatchedShare,
    WorkerFault,
)
from veilsum_participant.data.local import LocalDatasets
from veilsum_participant.datasets import Datasets
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.settings.query import origin
from veilsum_participant.worker.remote import WorkerDatasets, offered_bytes
from veilsum_participant.worker.rows import opened_rows, sealed_rows
from veilsum_privacy.mechanism.records import Records
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn

NAME, ROWS, WIDTH = "records", 37, 3
SECRET = "patient-4711"
RECORD = 8 * WIDTH + WIDTH + 8 + 8
"""Bytes of a record in memory: features, whether each is there, class, subject."""
SCHEMA = schema_of(WIDTH, 2, 100_000)
UNLABELLED = SCHEMA.model_copy(update={"label": None})


def write(directory: Path) -> None:
    rng = np.random.default_rng(3)
    values = rng.uniform(-1.5, 1.5, (ROWS, WIDTH))
    columns: dict[str, Any] = {f"x{place}": list(values[:, place]) for place in range(WIDTH)}
    columns["x1"][5] = None
    columns["y"] = [str(label) for label in rng.integers(0, 3, ROWS)]
    columns["who"] = [f"p{who}" for who in rng.integers(0, 9, ROWS)]
    table = pa.table(columns)
    parquet.write_table(table, directory / "r.parquet", row_group_size=5)
    csv.write_csv(table, directory / "r.csv")
    np.savez(directory / "r.npz", X=values, y=np.array(columns["y"]), who=np.array(columns["who"]))


OFFERED: dict[str, dict[str, Any]] = {
    "csv": {"path": "r.csv", "columns": ("x0", "x1", "x2", "y")},
    "parquet": {"path": "r.parquet"},
    "npz": {"path": "r.npz"},
    "query": {"source": "sql", "query": "SELECT * FROM t", "files": {"t": "r.parquet"}, "joined": False},
}


def offer(directory: Path, kind: str, **changes: Any) -> DatasetConfig:
    given = {**OFFERED[kind], **changes}
    if "path" in given:
        given["path"] = directory / given["path"]
    if "files" in given:
        given["files"] = {name: directory / path for name, path in given["files"].items()}
    return DatasetConfig(**given)


def everything(datasets: Datasets, offered: DatasetConfig, schema: DatasetSchema, by_subject: bool) -> list[Any]:
    """All that a guard gets to see of a dataset."""
    datasets.check(NAME, offered, schema)
    batches = datasets.batches(NAME, offered, schema, by_subject=by_subject)
    streamed = [bits(batch) for batch in batches]
    whole = datasets.read(NAME, offered, schema)
    return [streamed, batches.digest, bits(whole.records), whole.digest]


def bits(records: Records) -> list[tuple[Any, ...] | None]:
    arrays = (records.features, records.present, records.labels, records.subjects)
    return [None if each is None else (each.dtype.str, each.shape, each.tobytes()) for each in arrays]


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("subject", ["who", None])
@pytest.mark.parametrize("memory", [1, 64], ids=["streamed", "held"])
@pytest.mark.parametrize("kind", sorted(OFFERED))
def test_records_are_the_same_to_the_bit(tmp_path: Path, kind: str, memory: int, subject: str | None, labelled: bool) -> None:
    write(tmp_path)
    offered = offer(tmp_path, kind, memory=memory, subject=subject)
    schema = SCHEMA if labelled else UNLABELLED
    starter = ThreadStarter()
    apart = WorkerDatasets(starter)
    try:
        found = everything(apart, offered, schema, subject is not None)
    finally:
        apart.close()
    assert found == everything(LocalDatasets(), offered, schema, subject is not None)
    assert ("BeginRows" in starter.asked("reader")) == (memory == 1 and kind != "npz")
    assert all(worker.ended.is_set() for worker in starter.started)
    assert {worker.dataset for worker in starter.started} == {NAME}


def test_a_real_process_reads_and_is_gone_afterwards(tmp_path: Path) -> None:
    write(tmp_path)
    offered = offer(tmp_path, "query", subject="who", memory=64)
    apart = WorkerDatasets(ProcessStarter())
    started: list[Any] = []
    real = apart._starter.start
    apart._starter.start = lambda *given: started.append(real(*given)) or started[-1]  # type: ignore[method-assign,func-returns-value]
    try:
        assert everything(apart, offered, SCHEMA, True) == everything(LocalDatasets(), offered, SCHEMA, True)
    finally:
        apart.close()
    assert [child.process.poll() in (0, -9) for child in started] == [True]


def test_a_real_process_that_is_killed_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    offered, children = offer(tmp_path, "csv", memory=64), list[Child]()

    class Watched(ProcessStarter):
        def start(self, role: str, of: str = "") -> Child:
            children.append(super().start(role, of))
            return children[-1]

    real = WorkerDatasets._ask

    def ask(reader: Any, name: str, request: Inquiry[Any], until: float | None = None) -> Any:
        if isinstance(request, LoadRows) and len(children) == 1:
            children[0].process.kill()
        return real(reader, name, request, until)

    monkeypatch.setattr(WorkerDatasets, "_ask", staticmethod(ask))
    apart = WorkerDatasets(Watched())
    found = apart.read(NAME, offered, SCHEMA)
    apart.close()
    assert bits(found.records) == bits(LocalDatasets().read(NAME, offered, SCHEMA).records)
    assert len(children) == 2
    assert all(child.process.poll() is not None for child in children)


def test_a_real_process_decodes_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(4):
        Image.fromarray(rng.integers(0, 255, (6, 5), dtype=np.uint8), "L").save(tmp_path / f"{number}.png")
    parquet.write_table(pa.table({"file": [f"{n}.png" for n in range(5)], "y": list("01010")}), tmp_path / "r.parquet")
    pixels = {"column": "file", "folder": tmp_path, "shape": (1, 2, 2)}
    offered = DatasetConfig.model_validate({"path": tmp_path / "r.parquet", "images": pixels})
    columns = tuple(NumberColumn(name=f"pixel{place}", low=0.0, high=255.0) for place in range(4))
    schema = SCHEMA.model_copy(update={"columns": columns, "max_records": 10})
    apart = WorkerDatasets(ProcessStarter())
    try:
        found = apart.read(NAME, offered, schema).records
    finally:
        apart.close()
    assert bits(found) == bits(LocalDatasets().read(NAME, offered, schema).records)
    assert found.present.sum() == 16, "one file is not there"


def test_a_reader_that_waits_reads_next_and_others_are_started_for_others(tmp_path: Path) -> None:
    write(tmp_path)
    starter = ThreadStarter()
    apart = WorkerDatasets(starter)
    one, other = offer(tmp_path, "csv"), offer(tmp_path, "parquet")
    apart.check(NAME, one, SCHEMA)
    apart.check(NAME, one, UNLABELLED)
    apart.check("others", other, SCHEMA)
    apart.read(NAME, one, SCHEMA)
    assert [(worker.dataset, worker.asked) for worker in starter.started] == [
        (NAME, ["OpenDataset", "CheckStructure", "CheckStructure", "LoadRows"]),
        ("others", ["OpenDataset", "CheckStructure"]),
    ]
    assert [worker.ended.is_set() for worker in starter.started] == [True, False]
    (waiting,) = apart._waiting
    apart._expire(waiting, apart._waiting[waiting][0])
    assert starter.started[1].ended.is_set()
    apart.close()


def test_a_reader_gets_its_dataset_and_nothing_else_of_the_site(tmp_path: Path) -> None:
    offered = DatasetConfig(
        source="sql", dsn="postgresql://reader:geheim@db/clinic", query="SELECT 1", joined=False, columns=("x0",), timeout=7
    )
    again = DatasetConfig.model_validate_json(offered_bytes(offered))
    assert again == offered
    assert origin(again, "x").url == "postgresql://reader:geheim@db/clinic"  # type: ignore[union-attr]


# -- readers that are out of order -------------------------------------------------------------------------------------------


def records() -> Records:
    rng = np.random.default_rng(1)
    return Records(
        rng.uniform(-1, 1, (5, WIDTH)), rng.random((5, WIDTH)) < 0.9, rng.integers(0, 2, 5), np.array([0, 0, 1, 2, 2])
    )


def raw(*parts: bytes, rows: int = 5, subjects: int = 1, digest: bytes = b"", over: int = 0) -> SealedRows:
    return SealedRows(rows, subjects, over, digest, SealedMemory.of(*parts) if parts else None)


def parts(**changes: Any) -> list[bytes]:
    """The bytes of :func:`records`, features to subjects."""
    given = records()
    found = {
        "features": given.features.tobytes(),
        "present": given.present.tobytes() + bytes(-given.present.size % 8),
        "labels": b"" if given.labels is None else given.labels.tobytes(),
        "subjects": b"" if given.subjects is None else given.subjects.tobytes(),
    }
    return list({**found, **changes}.values())


LIES: dict[str, Callable[[], Message]] = {
    "no memory": raw,
    "memory of no records": lambda: raw(*parts(), rows=0),
    "a row more": lambda: raw(*parts(), rows=6),
    "a row less": lambda: raw(*parts(), rows=4),
    "2^36 rows": lambda: raw(*parts(), rows=2**36),
    "eight bytes more": lambda: raw(*parts(), bytes(8)),
    "one byte less": lambda: raw(b"".join(parts())[:-1]),
    "single precision": lambda: raw(*parts(features=records().features.astype(np.float32).tobytes())),
    "no subjects": lambda: raw(*parts(subjects=b""), subjects=0),
    "said not to tell subjects": lambda: raw(*parts(), subjects=0),
    "no classes": lambda: raw(*parts(labels=b"")),
    "neither there nor not": lambda: raw(*parts(present=bytes([2]) + bytes(15))),
    "subjects apart": lambda: raw(*parts(subjects=np.array([0, 1, 0, 2, 2]).tobytes())),
    "a digest of a file": lambda: raw(*parts(), digest=bytes(32)),
    "a digest of one byte": lambda: raw(*parts(), digest=b"x"),
    "another message": lambda: UnmatchedShare(0.5),
    "an unknown fault": lambda: WorkerFault(0),
}


@pytest.mark.parametrize(
    ("lie", "streamed"),
    [(lie, streamed) for lie in sorted(LIES) for streamed in (False, True) if not (streamed and lie.startswith("a digest"))],
)
def test_a_reader_that_lies_is_gone_and_no_record_of_it_is_taken(tmp_path: Path, lie: str, streamed: bool) -> None:
    write(tmp_path)
    offered = offer(tmp_path, "csv", subject="who", memory=1 if streamed else 64)

    def meddle(request: Inquiry[Any], honest: Answer) -> Message | None:
        return LIES[lie]() if isinstance(request, LoadRows | NextRows) else honest(request)

    starter = ThreadStarter(meddle)
    apart = WorkerDatasets(starter)
    with pytest.raises(VeilsumError) as told:
        list(apart.batches(NAME, offered, SCHEMA, by_subject=True))
    assert isinstance(told.value, Unavailable | DataError)
    assert not apart.holds
    assert all(worker.ended.is_set() for worker in starter.started)
    apart.close()


def test_what_is_in_bounds_is_taken_whatever_it_holds() -> None:
    """Values that no reader gives are the kernel's to bound; that they cross as they are is what its tests assume."""
    odd = np.array([[np.nan, np.inf, -np.inf]] * 5)
    found = opened_rows(raw(*parts(features=odd.tobytes(), labels=np.full(5, 2**40).tobytes())), SCHEMA, subjects=True)
    assert np.array_equal(found.features, odd, equal_nan=True)
    assert found.labels is not None
    assert (found.labels == 2**40).all()


def test_memory_cannot_be_changed_once_it_was_sent() -> None:
    sent = sealed_rows(records())
    taken = opened_rows(sent, SCHEMA, subjects=True)
    assert not taken.features.flags.writeable
    assert not taken.present.flags.writeable


def header(code: int, call: int, size: int, magic: bytes = b"v0") -> bytes:
    return struct.pack("<2sHIQ", magic, code, call, size)


def send(end: socket.socket, data: bytes, *fds: int) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())] if fds else []
    end.sendmsg([data], rights)


def _unsealed(end: socket.socket, code: int, call: int) -> None:
    memory = os.memfd_create("x")
    os.write(memory, b"".join(parts()))
    body = SealedRows(5, 1).to_bytes()
    send(end, header(code, call, len(body), b"v2") + body, memory)
    os.close(memory)


def _hole(end: socket.socket, code: int, call: int) -> None:
    """The right size, of which nothing but the last byte is there."""
    rows = 1 << 15
    memory = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.pwrite(memory, bytes(1), rows * RECORD - 1)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
    body = SealedRows(rows, 1).to_bytes()
    send(end, header(code, call, len(body), b"v2") + body, memory)
    os.close(memory)


def _pipe(end: socket.socket, code: int, call: int) -> None:
    ours, theirs = os.pipe()
    body = SealedRows(5, 1).to_bytes()
    send(end, header(code, call, len(body), b"v2") + body, ours)
    os.close(ours)
    os.close(theirs)


GARBAGE: dict[str, Callable[[socket.socket, int, int], object]] = {
    "ends": lambda end, *_: end.shutdown(socket.SHUT_RDWR),
    "noise": lambda end, *_: send(end, np.random.default_rng(0).bytes(200)),
    "one byte": lambda end, *_: send(end, b"v"),
    "an answer to another call": lambda end, code, call: send(end, header(code, call + 1, 0)),
    "another answer": lambda end, code, call: send(end, header(code + 1, call, 0)),
    "noise for a message": lambda end, code, call: send(end, header(code, call, 9) + b"\xff" * 9),
    "a size that is none": lambda end, code, call: send(end, header(code, call, 2**63) + b""),
    "memory that does not come": lambda end, code, call: send(end, header(code, call, 0, b"v2")),
    "unsealed memory": _unsealed,
    "memory with a hole": _hole,
    "a pipe for memory": _pipe,
    "silence": lambda *_: None,
}


@pytest.mark.parametrize("after", [OpenDataset, CheckStructure, LoadRows, BeginRows, NextRows, AskShare])
@pytest.mark.parametrize("what", sorted(GARBAGE))
def test_garbage_at_each_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: type[Inquiry[Any]], what: str
) -> None:
    write(tmp_path)
    schema_file = tmp_path / "schema.json"
    schema_file.write_text(SCHEMA.model_dump_json())
    streamed = after in (BeginRows, NextRows)
    offered = offer(tmp_path, "csv", subject="who", memory=1 if streamed else 64, schema_file=schema_file, most_unmatched=0.5)
    seconds = 0.2 if what == "silence" else 30.0
    for each in (OpenDataset, CheckStructure, AskShare):
        monkeypatch.setattr(each, "seconds", seconds)
    starter = RawStarter(after, GARBAGE[what])
    apart = WorkerDatasets(starter)

    def ask() -> object:
        if after is AskShare:
            return apart.unmatched(NAME, offered)
        if after in (OpenDataset, CheckStructure):
            return list(apart.structure_faults(NAME, offered, SCHEMA))
        return list(apart.batches(NAME, offered, SCHEMA, by_subject=True, seconds=seconds))

    with pytest.raises(Unavailable):
        ask()
    assert all(worker.ended.is_set() for worker in starter.started)
    again = after in (LoadRows, BeginRows) and what != "silence"
    assert len(starter.started) == 1 + again, "a reading that gave nothing is tried once more, while there is time"
    apart.close()


SPARSE = """
import fcntl, os, sys, socket
from veilsum_participant.boundary import reader as table
from veilsum_participant.boundary.framing import FramedSocket, SealedMemory, _SEALS

line = FramedSocket(socket.socket(fileno=int(sys.argv[1])))
sent = False
while (frame := line.receive()) is not None:
    if frame.code not in (table.LoadRows.code, table.NextRows.code):
        line.send(frame.code, frame.call, table.WorkerDone())
        continue
    if sent:
        line.send(frame.code, frame.call, table.SealedRows(over=1))
        continue
    sent = True
    rows = 1 << 25
    memory = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, rows * {record})
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
    line.send(frame.code, frame.call, table.SealedRows(rows, 1, memory=SealedMemory(memory, rows * {record})))
"""


@pytest.mark.parametrize("streamed", [True, False])
def test_a_real_process_that_hands_over_memory_of_nothing_costs_the_guard_none(tmp_path: Path, streamed: bool) -> None:
    """A gigabyte of holes, which would be filled for whoever looks whether each value is there."""

    class Sparse:
        def start(self, role: str, of: str = "") -> Child:
            own, other = pair()
            command = [sys.executable, "-c", SPARSE.format(record=RECORD), str(other.fileno())]
            process = subprocess.Popen(
                command, pass_fds=(other.fileno(),), env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
            )
            other.close()
            return Child(own, process)

    write(tmp_path)
    offered = offer(tmp_path, "csv", subject="who", memory=1 if streamed else 64)
    apart = WorkerDatasets(Sparse())
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = peak()
    with pytest.raises(Unavailable, match="is gone: Sealed memory has holes"):
        list(apart.batches(NAME, offered, SCHEMA, by_subject=True))
    assert peak() - before < 64 << 10
    assert not apart.holds
    apart.close()


def peak() -> int:
    """KiB of this process's memory at most, since its peak began anew."""
    return int(re.findall(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)[0])


@pytest.mark.parametrize("kind", list(FaultKind))
def test_a_fault_crosses_as_its_kind_and_no_word_of_it(tmp_path: Path, kind: FaultKind) -> None:
    """Before a reservation it is a refusal by its kind; the words are the guard's own."""
    raised = {
        FaultKind.SOURCE: DataError(SECRET),
        FaultKind.SETTINGS: ConfigurationError(SECRET),
        FaultKind.AWAY: Unavailable(SECRET),
        FaultKind.MEMORY: MemoryError(SECRET),
        FaultKind.OTHER: ZeroDivisionError(SECRET),
    }[kind]

    def meddle(request: Inquiry[Any], honest: Answer) -> Message | None:
        if isinstance(request, CheckStructure):
            raise raised
        return honest(request)

    apart = WorkerDatasets(ThreadStarter(meddle))
    write(tmp_path)
    if kind is FaultKind.AWAY:
        with pytest.raises(Unavailable) as told:
            list(apart.structure_faults(NAME, offer(tmp_path, "csv"), SCHEMA))
        said = str(told.value)
    else:
        (refusal,) = apart.structure_faults(NAME, offer(tmp_path, "csv"), SCHEMA)
        assert refusal.code is RefusalCode.DATASET
        said = f"{refusal} {refusal.message} {refusal.advice}"
    assert SECRET not in said
    apart.close()


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_is_one(tmp_path: Path, share: float) -> None:
    write(tmp_path)
    schema_file = tmp_path / "schema.json"
    schema_file.write_text(SCHEMA.model_dump_json())
    apart = WorkerDatasets(
        ThreadStarter(lambda request, honest: UnmatchedShare(share) if isinstance(request, AskShare) else honest(request))
    )
    with pytest.raises(Unavailable):
        apart.unmatched(NAME, offer(tmp_path, "csv", schema_file=schema_file, most_unmatched=0.5))
    apart.close()


def test_a_reader_that_dies_before_it_gave_records_is_started_once_more(tmp_path: Path) -> None:
    write(tmp_path)
    died: list[str] = []

    def meddle(request: Inquiry[Any], honest: Answer) -> Message | None:
        if isinstance(request, LoadRows) and not died:
            died.append("once")
            return None
        return honest(request)

    starter = ThreadStarter(meddle)
    apart = WorkerDatasets(starter)
    offered = offer(tmp_path, "csv", memory=64)
    assert bits(apart.read(NAME, offered, SCHEMA).records) == bits(LocalDatasets().read(NAME, offered, SCHEMA).records)
    assert [worker.asked for worker in starter.started] == [["OpenDataset", "LoadRows"]] * 2
    apart.close()
