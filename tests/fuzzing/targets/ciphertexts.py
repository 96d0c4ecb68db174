"""Ciphertexts, sums and dealt keys: SEAL's C++ reads them, so a key is spoilt inside its compressed frame too."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from fuzzing.mutation import EDGES, mutate_bytes
from fuzzing.targets.base import Corpus
from veilsum_privacy.securesum.bfv import Adder, SecretKey
from veilsum_privacy.securesum.frames import FrameSize
from veilsum_privacy.securesum.parameters import BFV_4096, BFV_8192, BfvParameters

SETS = (BFV_4096, BFV_8192)
SLOTS = 40


def block(size: int, *, last: bool, repeated: bool = False) -> bytes:
    """The header of a block of a compressed frame."""
    return (size << 3 | repeated << 1 | last).to_bytes(3, "little")


def inflate(whole: bytes, size: FrameSize) -> bytes:
    """What an honest object holds inside its frame."""
    return bytes(pa.decompress(whole[16:], decompressed_size=size.content, codec="zstd", asbytes=True))


def wrap(content: bytes, version: bytes, *, stored: bool) -> bytes:
    """SEAL's header and a frame around ``content``; ``stored`` in raw blocks, which change no byte of it."""
    if stored:
        frame = bytes.fromhex("28b52ffd") + b"\xa0" + struct.pack("<I", len(content))
        pieces = [content[at : at + 131072] for at in range(0, len(content), 131072)] or [b""]
        for number, piece in enumerate(pieces, 1):
            frame += block(len(piece), last=number == len(pieces)) + piece
    else:
        frame = pa.compress(content, codec="zstd", asbytes=True)
    return b"\x5e\xa1\x10" + version + b"\x02\0\0" + struct.pack("<Q", 16 + len(frame)) + frame


def nested_bomb(content: bytes, at: int, blocks: int) -> bytes:
    """``content`` whose inner object, at ``at``, is itself compressed: blocks of one byte that stand for 128 KiB each."""
    frame = bytes.fromhex("28b52ffd") + b"\x00\x38" + (block(131072, last=False, repeated=True) + b"\0") * blocks
    frame += block(0, last=True)
    inner = content[at : at + 5] + b"\x02\0\0" + struct.pack("<Q", 16 + len(frame)) + frame
    return (content[:at] + inner).ljust(len(content), b"\0")[: len(content)]


class Ciphertexts(Corpus):
    """Fresh ciphertexts, sums and keys of both parameter sets."""

    name = "ciphertexts"
    readers = 6

    def __init__(self) -> None:
        super().__init__()
        self.keys = [SecretKey.generate(item) for item in SETS]
        for number, (parameters, key) in enumerate(zip(SETS, self.keys, strict=True)):
            fresh = [key.encrypt(np.full(SLOTS, value, dtype=np.uint64)) for value in (0, 1)]
            sums = [self.added(parameters, fresh), self.added(parameters, fresh * 33)]
            self.seeds[3 * number : 3 * number + 3] = [fresh, sums, [key.to_bytes()]]
        self.version = self.seeds[2][0][3:5]
        self.content = [inflate(self.seeds[3 * number + 2][0], item.key) for number, item in enumerate(SETS)]

    @staticmethod
    def added(parameters: BfvParameters, parts: Sequence[bytes]) -> bytes:
        """The sum of fresh ciphertexts."""
        adder = Adder(parameters, SLOTS, len(parts))
        for part in parts:
            adder.add(part)
        return adder.to_bytes()

    def build(self, rng: random.Random, reader: int) -> bytes | None:
        number, kind = divmod(reader, 3)
        if kind < 2 or rng.random() < 0.2:
            return None
        content = self.content[number]
        at = content.index(b"\x5e\xa1\x10", 40)
        match rng.randrange(5):
            case 0:
                spoilt = nested_bomb(content, at, rng.choice((1, 100, 8000, 16000)))
            case 1:  # its own header fields: sizes, degrees, flags
                place = rng.randrange(at + 24)
                value = rng.choice(EDGES).to_bytes(8, "little")[: rng.choice((1, 2, 4, 8))]
                spoilt = content[:place] + value + content[place + len(value) :]
            case 2:
                spoilt = mutate_bytes(rng, content).ljust(len(content), b"\0")[: len(content)]
            case 3:
                spoilt = content[: at + 24] + rng.randbytes(len(content) - at - 24)
            case _:
                spoilt = mutate_bytes(rng, content)
        return wrap(spoilt[: len(content)], self.version, stored=rng.random() < 0.8)

    def read(self, reader: int, data: bytes) -> None:
        number, kind = divmod(reader, 3)
        parameters, key = SETS[number], self.keys[number]
        if kind == 0:
            self.added(parameters, [self.seeds[3 * number][0], data])
        elif kind == 1:
            key.decrypt(data, SLOTS, 66 if len(data) > parameters.sum_bytes(SLOTS, 2) else 2)
        else:
            other = SecretKey.parse(data, parameters)
            other.decrypt(self.seeds[3 * number + 1][0], SLOTS, 2)
            self.added(parameters, [other.encrypt(np.zeros(SLOTS, dtype=np.uint64))])
