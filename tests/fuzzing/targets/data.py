"""A site's records: CSV, Parquet and npz files, read as a study and as ``data check`` read them."""

from __future__ import annotations

import io
import json
import random
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from fuzzing.driver import Unexpected
from fuzzing.mutation import EDGES, json_value, mutate_bytes, mutate_json, mutate_text, write_json
from fuzzing.targets.base import Corpus
from veilsum_node.errors import DataError
from veilsum_participant.data.check import check_dataset
from veilsum_participant.data.encode import load_records
from veilsum_participant.data.sources import check_structure
from veilsum_participant.settings.query import SourceQuery
from veilsum_privacy.study.schema import CategoryColumn, ClassValues, DatasetSchema, LabelColumn, NumberColumn

SCHEMA = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=0.0, high=120.0, impute=50.0),
        CategoryColumn(name="sex", categories=("f", "m")),
        NumberColumn(name="x", low=-1.0, high=1.0),
    ),
    label=LabelColumn(column="y", classes=(ClassValues(name="no", values=("0",)), ClassValues(name="yes", values=("1", "2")))),
)
COLUMNS = {
    "age": np.array([1.0, 50.5, np.nan, 99.0]),
    "sex": np.array(["f", "m", "?", "f"]),
    "x": np.array([-1.0, 0.25, 1.0, 7.0]),
    "y": np.array(["0", "1", "2", "x"]),
    "who": np.array(["p1", "p2", "p1", ""]),
}


class _Files(Corpus):
    suffix = ""
    readers = 2

    def read(self, reader: int, data: bytes) -> None:
        path = self.file(f"records{self.suffix}", data)
        if reader:
            check_dataset(path, SCHEMA, subject="who")
            return
        records, _ = load_records(path, SCHEMA, "who")
        if not np.isfinite(records.features).all() or np.abs(records.features).max(initial=0.0) > 1.0:
            raise Unexpected("a feature outside [-1, 1]")


class Csv(_Files):
    """Texts."""

    name, suffix = "csv", ".csv"

    def __init__(self) -> None:
        super().__init__()
        rows = zip(*COLUMNS.values(), strict=True)
        lines = [",".join(COLUMNS), *(",".join(str(cell) for cell in row) for row in rows)]
        text = "\n".join(lines) + "\n"
        for seeds in self.seeds:
            seeds += [text.encode(), text.replace("\n", "\r\n").encode("utf-8-sig")]
            seeds.append(text.replace("p1", '"ä,\n"').encode("latin-1"))

    def read(self, reader: int, data: bytes) -> None:
        check_structure(self.file("records.csv", data), SCHEMA, subject="who")
        try:
            super().read(reader, data)
        except DataError as error:
            raise Unexpected("a record decides whether the file is read") from error

    def build(self, rng: random.Random, reader: int) -> bytes | None:
        if rng.random() < 0.4:
            return None
        text = rng.choice(self.seeds[reader]).decode("utf-8", "replace")
        return mutate_text(rng, mutate_text(rng, text)).encode("utf-8", "surrogatepass")


class Parquet(_Files):
    """Parquet: Arrow's C++ reads it."""

    name, suffix = "parquet", ".parquet"

    def __init__(self) -> None:
        super().__init__()
        table = pa.table({name: pa.array(values) for name, values in COLUMNS.items()})
        odd = table.set_column(1, "sex", pa.array(["f", "m", None, "f"]).dictionary_encode())
        odd = odd.set_column(0, "age", pa.array([[1.0], [2.0], [], None]))
        for one, options in ((table, {}), (table, {"compression": "zstd"}), (table, {"use_dictionary": False}), (odd, {})):
            buffer = io.BytesIO()
            parquet.write_table(one, buffer, **options)
            for seeds in self.seeds:
                seeds.append(buffer.getvalue())


class Npz(_Files):
    """Archives of arrays: zip members, their headers, and the arrays' headers."""

    name, suffix = "npz", ".npz"

    def __init__(self) -> None:
        super().__init__()
        whole = {"X": np.zeros((4, 3)), "y": COLUMNS["y"], "who": COLUMNS["who"]}
        for save in (np.savez, np.savez_compressed):
            for arrays in (COLUMNS, whole):
                buffer = io.BytesIO()
                save(buffer, **arrays)
                for seeds in self.seeds:
                    seeds.append(buffer.getvalue())

    def build(self, rng: random.Random, reader: int) -> bytes | None:
        if rng.random() < 0.4:
            return None
        members = {}
        for name, values in COLUMNS.items():
            buffer = io.BytesIO()
            np.save(buffer, values)
            members[name] = buffer.getvalue()
        name = rng.choice(list(members))
        if rng.random() < 0.5:
            text = members[name]
            at = text.index(b"(")
            shape = rng.choice((b"(%d,)" % rng.choice(EDGES), b"(-1,)", b"()", b"(4, 1)", b"(0,)", b"(99999999999,)"))
            kinds = (b"'<f8'", b"'|O'", b"'<U9999999'", b"'<M8[s]'", b"'<c16'", b"[('a', '<f8')]", b"'|V8'", b"'<f2'")
            header = b"{'descr': %s, 'fortran_order': False, 'shape': %s, }" % (rng.choice(kinds), shape)
            header = header.ljust(117) + b"\n"
            members[name] = text[:8] + len(header).to_bytes(2, "little") + header + text[at + 60 :]
        else:
            members[name] = mutate_bytes(rng, members[name])
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
            for member, content in members.items():
                archive.writestr(f"{member}.npy", content)
        data = buffer.getvalue()
        return mutate_bytes(rng, data) if rng.random() < 0.3 else data


class Ndjson(_Files):
    """JSON in lines and in one document, through a query; a whole line after all that came before is a record of its own."""

    name, readers = "ndjson", 4
    last = '{"age": 33.5, "sex": "m", "x": 0.125, "y": "2", "who": "last"}'
    text = "SELECT " + ", ".join(f"json->>'$.{name}' AS {name}" for name in COLUMNS) + " FROM t"  # noqa: S608

    def __init__(self) -> None:
        super().__init__()
        rows = [dict(zip(COLUMNS, map(str, row), strict=True)) for row in zip(*COLUMNS.values(), strict=True)]
        lines = "\n".join(map(json.dumps, rows)) + "\n"
        odd = '{"age": 1e400, "sex": "\\ud800", "x": null, "y": 1, "y": 2}\n{"age": {"a": [1]}, "x": -0.0}\n[1]\n"t"\n'
        for reader, seeds in enumerate(self.seeds):
            if reader < 2:
                seeds += [text.encode(code) for text in (lines, odd) for code in ("utf-8", "utf-8-sig", "latin-1")]
            else:
                seeds += [
                    json.dumps(value).encode(code) for value in (rows, rows[0], [[rows]], 1) for code in ("utf-8", "utf-16")
                ]

    def build(self, rng: random.Random, reader: int) -> bytes | None:
        text = rng.choice(self.seeds[reader]).decode("utf-8", "replace")
        match rng.randrange(5):
            case 0:
                return mutate_text(rng, mutate_text(rng, text)).encode("utf-8", "surrogatepass")
            case 1:
                lines = text.splitlines() or [""]
                at = rng.randrange(len(lines))
                try:
                    lines[at] = write_json(mutate_json(rng, json.loads(lines[at]))).decode("utf-8", "surrogateescape")
                except (ValueError, RecursionError):
                    lines[at] = json.dumps(json_value(rng))
                return "\n".join(lines).encode("utf-8", "surrogateescape")
            case 2:
                deep = rng.choice(("[", '{"a":', '{"age":[')) * rng.choice((3, 900, 20_000))
                return (deep + text).encode("utf-8", "surrogatepass")
            case 3:
                return text.encode(rng.choice(("utf-16", "utf-16-be", "utf-32", "utf-7")), "replace")
        return None

    def read(self, reader: int, data: bytes) -> None:
        name, whole = (f"t{'.json' if reader > 1 else '.ndjson'}", data)
        if reader < 2:
            whole += b"\n" + self.last.encode()
        query = SourceQuery("records", self.text, files={"t": self.file(name, whole)})
        check_structure(query, SCHEMA, subject="who")
        try:
            if reader % 2:
                check_dataset(query, SCHEMA, subject="who")
                return
            records, _ = load_records(query, SCHEMA, "who")
        except DataError as error:
            raise Unexpected("a record decides whether the file is read") from error
        if not np.isfinite(records.features).all() or np.abs(records.features).max(initial=0.0) > 1.0:
            raise Unexpected("a feature outside [-1, 1]")
        if reader == 0 and not (records.features[:, -1] == 0.125).any():
            raise Unexpected("a line takes another one with it")
