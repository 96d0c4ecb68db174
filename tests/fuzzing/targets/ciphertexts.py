"""Ciphertexts, sums and dealt keys: SEAL's C++ reads them, so what reaches it is spoilt inside its compressed frame too."""

from __future__ import annotations

import random
import struct

import numpy as np
import pyarrow as pa

from fuzzing.mutation import EDGES, mutate_bytes
from fuzzing.targets.base import Corpus
from veilsum_privacy.securesum.bfv import Adder, SecretKey
from veilsum_privacy.securesum.frames import FrameSize
from veilsum_privacy.securesum.parameters import BFV_4096, BFV_8192

SETS = (BFV_4096, BFV_8192)


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
        self.adders, self.keys = [Adder(item) for item in SETS], [SecretKey.generate(item) for item in SETS]
        self.versions = b""
        for number, (parameters, adder, key) in enumerate(zip(SETS, self.adders, self.keys, strict=True)):
            fresh = [key.encrypt(np.full(parameters.degree, value, dtype=np.uint64)) for value in (0, 1)]
            total = adder.add(adder.parse(fresh[0]), adder.parse(fresh[1]))
            sums = [adder.serialise(total), adder.serialise(total, [adder.seed(item) for item in fresh])]
            self.seeds[3 * number : 3 * number + 3] = [fresh, sums, [key.to_bytes()]]
            self.version = fresh[0][3:5]
        self.sizes = [size for item in SETS for size in (item.fresh, item.sum, item.key)]
        self.content = [inflate(seeds[0], size) for seeds, size in zip(self.seeds, self.sizes, strict=True)]

    def build(self, rng: random.Random, reader: int) -> bytes | None:
        if rng.random() < 0.2:
            return None
        content = self.content[reader]
        at = content.index(b"\x5e\xa1\x10", 40)
        match rng.randrange(5):
            case 0:
                spoilt = nested_bomb(content, at, rng.choice((1, 100, 8000, 16000)))
            case 1:  # its own header fields: sizes, degrees, flags
                place = rng.choice((*range(at + 24), *range(len(content) - 90, len(content))))
                number = rng.choice(EDGES).to_bytes(8, "little")[: rng.choice((1, 2, 4, 8))]
                spoilt = content[:place] + number + content[place + len(number) :]
            case 2:
                spoilt = mutate_bytes(rng, content).ljust(len(content), b"\0")[: len(content)]
            case 3:
                spoilt = content[: at + 24] + rng.randbytes(len(content) - at - 24)
            case _:
                spoilt = mutate_bytes(rng, content)
        return wrap(spoilt[: len(content)], self.version, stored=rng.random() < 0.8)

    def read(self, reader: int, data: bytes) -> None:
        number, kind = divmod(reader, 3)
        parameters, adder, key = SETS[number], self.adders[number], self.keys[number]
        if kind == 0:
            honest = adder.parse(self.seeds[3 * number][0])
            adder.serialise(adder.add(honest, adder.parse(data)))
        elif kind == 1:
            key.decrypt(data)
        else:
            other = SecretKey.parse(data, parameters)
            other.decrypt(self.seeds[3 * number + 1][0])
            adder.parse(other.encrypt(np.zeros(parameters.degree, dtype=np.uint64)))
