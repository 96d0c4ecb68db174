"""Ledgers that others hand over: exports in JSON Lines, and backups."""

from __future__ import annotations

import io
import json
import random
import shutil
import tarfile

from fuzzing.mutation import EDGES, mutate_bytes, mutate_json, write_json
from fuzzing.targets.base import Corpus
from support.federation import make_bed, make_data
from support.ledgers import OTHER_STUDY, START, Trial, federation
from veilsum_node.errors import VeilsumError
from veilsum_node.identity import Role
from veilsum_privacy.backup.backup import MANIFEST, BackupOwner, back_up, open_archive
from veilsum_privacy.backup.restore import restore
from veilsum_privacy.ledger import LedgerFault, read_export, write_csv, write_jsonl


class Exports(Corpus):
    """An export is read, verified, written again and written as CSV."""

    name = "exports"
    allowed = (VeilsumError, LedgerFault)

    def __init__(self) -> None:
        super().__init__()
        trial = Trial(("north", "south"))
        trial.play(1)
        trial.play(1, study=OTHER_STUDY, multiplier=9.0, rate=0.01, steps=7)
        for ledger in (trial.ledgers["north"], trial.mirror):
            stream = io.StringIO()
            write_jsonl(ledger, stream)
            self.seeds[0].append(stream.getvalue().encode())
        self.authority = federation().ca
        self.start = START

    def build(self, rng: random.Random, reader: int) -> bytes | None:
        if rng.random() < 0.2:
            return None
        lines = rng.choice(self.seeds[0]).split(b"\n")
        at = rng.randrange(len(lines))
        match rng.randrange(6):
            case 0:
                del lines[at]
            case 1:
                lines.insert(rng.randrange(len(lines)), lines[at])
            case _:
                try:
                    lines[at] = write_json(mutate_json(rng, json.loads(lines[at])))
                except ValueError:
                    return None
        return b"\n".join(lines)

    def read(self, reader: int, data: bytes) -> None:
        exported = read_export(self.file("export.jsonl", data))
        try:
            for kept in exported.receipts():
                repr(kept)
            write_csv(exported, io.StringIO())
        except self.allowed:
            pass
        exported.verify(authority=self.authority)
        again = io.StringIO()
        write_jsonl(exported, again)


class Backups(Corpus):
    """An archive is unpacked, and put back over nothing."""

    name = "backups"

    def __init__(self) -> None:
        super().__init__()
        bed = make_bed(self.directory / "bed", make_data("ab", 3))
        kit = bed.kit.participants[0]
        self.identity = kit.identity
        archive = self.directory / "whole.tar"
        back_up(BackupOwner(Role.PARTICIPANT, kit.directory / "participant.db", self.identity), archive, software="test 1")
        self.seeds[0].append(archive.read_bytes())
        with tarfile.open(archive) as tar:
            self.members = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]

    def build(self, rng: random.Random, reader: int) -> bytes | None:
        kind = rng.randrange(4)
        if kind == 0:  # heads of members, where a tar file steers its reader
            data = bytearray(self.seeds[0][0])
            fields = (0, 100, 108, 116, 124, 136, 148, 156, 157, 257, 345, 386, 483)
            at = rng.choice((0, 512 * rng.randrange(12))) + rng.choice(fields)
            data[at : at + 12] = mutate_bytes(rng, bytes(data[at : at + 12]))[:12].ljust(12, b"0")
            start = at - at % 512
            total = sum(data[start : start + 148]) + sum(data[start + 156 : start + 512]) + 8 * 32
            data[start + 148 : start + 156] = b"%06o\0 " % total
            return bytes(data)
        if kind == 1:
            return None
        members = dict(self.members)
        if rng.random() < 0.5:
            members[MANIFEST] = write_json(mutate_json(rng, json.loads(members[MANIFEST])))
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:", format=rng.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))) as tar:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                if rng.random() < 0.2:
                    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CONTTYPE, tarfile.FIFOTYPE)
                    info.type = rng.choice(kinds)
                if rng.random() < 0.2:
                    size = str(rng.choice(EDGES))
                    info.pax_headers = rng.choice((
                        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": size},
                        {"GNU.sparse.map": f"0,1,{size},1", "GNU.sparse.size": size}, {"size": size}, {"path": "../x"},
                    ))  # fmt: skip
                tar.addfile(info, io.BytesIO(content) if info.isreg() else None)
        return buffer.getvalue()

    def read(self, reader: int, data: bytes) -> None:
        place = self.directory / "restored"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        archive = self.file("backup.tar", data)
        with open_archive(archive) as (manifest, _):
            repr(manifest)
        restore(archive, BackupOwner(Role.PARTICIPANT, place / "participant.db", self.identity))
