"""How valid inputs are spoilt: bytes, JSON values, text, and protobuf messages along their fields."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

EDGES = (0, 1, 2, 7, 8, 31, 32, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63, 2**64 - 1)
"""Numbers at which something often changes."""

ODD_TEXTS = (
    "", "\0", "a" * 300, "../..", "\ud7ff\ue000", "\u202e", "\U0001f600", "1e999", "NaN", "-0", "0x1p-1074", "0x1.8p+9999",
    "true", "%s%n", "=1+1", "\r\n\r\n", "veilsum://", "9" * 5000,
)  # fmt: skip


def mutate_bytes(rng: random.Random, whole: bytes, others: Sequence[bytes] = ()) -> bytes:
    """``whole`` with one to four changes: bits, runs of bytes, numbers of 1 to 8 bytes, pieces of another input."""
    data = bytearray(whole)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 1, 2, 4, 8, 32)))
        match rng.randrange(8):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1:
                data[at:end] = rng.randbytes(end - at)
            case 2:
                del data[at:end]
            case 3:
                data[at:at] = data[at:end]
            case 4:
                data[at:at] = rng.randbytes(rng.choice((1, 2, 4, 16)))
            case 5:
                width = rng.choice((1, 2, 4, 8))
                number = rng.choice(EDGES) % (1 << 8 * width)
                data[at : at + width] = number.to_bytes(width, rng.choice(("little", "big")))  # type: ignore[arg-type]
            case 6:
                del data[rng.randrange(len(data) + 1) :]
            case _:
                other = rng.choice(others) if others else whole
                start = rng.randrange(len(other) + 1)
                data[at:end] = other[start : start + rng.choice((4, 16, 64, 4096))]
    return bytes(data)


def json_value(rng: random.Random, depth: int = 3) -> Any:
    """Some JSON value."""
    kind = rng.randrange(9 if depth else 7)
    if kind == 7:
        return [json_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 8:
        return {rng.choice((*ODD_TEXTS[:6], "v", "name", "kind")): json_value(rng, depth - 1) for _ in range(rng.randrange(4))}
    edge = rng.choice(EDGES)
    return (None, rng.random() < 0.5, edge, -edge, rng.choice(ODD_TEXTS), rng.random() * 10.0 ** rng.randrange(-300, 300),
            rng.randbytes(rng.choice((0, 1, 16, 32))).hex())[kind]  # fmt: skip


def mutate_json(rng: random.Random, value: Any) -> Any:
    """A copy of ``value`` with one or two places replaced, removed, doubled, swapped or added."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2))):
        holder = value
        while isinstance(holder, dict | list) and holder:
            keys = list(holder) if isinstance(holder, dict) else range(len(holder))
            key = rng.choice(keys)
            if isinstance(holder[key], dict | list) and rng.random() < 0.75:
                holder = holder[key]
                continue
            match rng.randrange(6):
                case 0 | 1:
                    holder[key] = json_value(rng)
                case 2:
                    del holder[key]
                case 3 if isinstance(holder[key], int) and not isinstance(holder[key], bool):
                    holder[key] += rng.choice((-1, 1, 2**31, 2**53))
                case 3 if isinstance(holder[key], str):
                    holder[key] = mutate_text(rng, holder[key])
                case 4:
                    other = rng.choice(keys)
                    holder[key], holder[other] = holder[other], holder[key]
                case _ if isinstance(holder, list):
                    holder.append(copy.deepcopy(holder[key]) if rng.random() < 0.5 else json_value(rng))
                case _:
                    holder[rng.choice(ODD_TEXTS[:8])] = json_value(rng)
            break
        else:
            return json_value(rng)
    return value


def write_json(value: Any) -> bytes:
    """Compact JSON with sorted keys: canonical where the value allows it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def mutate_text(rng: random.Random, text: str) -> str:
    """A text with one change."""
    at = rng.randrange(len(text) + 1)
    piece = rng.choice((*ODD_TEXTS, *"[]{}=\"'\\,.#\n\t", text[at : at + 20]))
    return text[:at] + piece + text[at + rng.choice((0, 1, 1, len(piece))) :]


def mutate_message(rng: random.Random, message: Message, words: Sequence[bytes | str | int]) -> None:
    """Change one field of ``message`` or of a message in it; ``words`` are values that mean something where it goes."""
    fields = message.DESCRIPTOR.fields
    if not fields:
        return
    field = rng.choice(fields)
    value = getattr(message, field.name)
    if field.is_repeated:
        if value and rng.random() < 0.5:
            match rng.randrange(3):
                case 0:
                    del value[rng.randrange(len(value))]
                case 1 if field.message_type:
                    mutate_message(rng, rng.choice(value), words)
                case _:
                    value.append(rng.choice(value))
        elif field.message_type:
            mutate_message(rng, value.add(), words)
        else:
            value.append(_scalar(rng, field, None, words))
    elif field.message_type:
        mutate_message(rng, value, words)
    elif rng.random() < 0.1:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(rng, field, value, words))


def _scalar(rng: random.Random, field: FieldDescriptor, old: Any, words: Sequence[bytes | str | int]) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        texts = field.type == FieldDescriptor.TYPE_STRING
        known = [word for word in words if isinstance(word, str if texts else bytes)]
        if known and rng.random() < 0.5:
            return rng.choice(known)
        if texts:
            return mutate_text(rng, old or "").encode("utf-8", "ignore").decode()
        return mutate_bytes(rng, old or b"") if rng.random() < 0.8 else rng.randbytes(rng.choice((0, 16, 31, 32, 33, 64)))
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return rng.choice((0.0, -0.0, 1.0, -1.0, 1e308, 1e-308, float("inf"), float("-inf"), float("nan")))
    bits = 32 if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_ENUM) else 64
    signed = kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_ENUM)
    known = [word for word in words if isinstance(word, int)]
    number = int(rng.choice((*EDGES, *known, *known, *known, (old or 0) + 1)))
    number %= 1 << bits
    return number - (1 << bits) if signed and number >> (bits - 1) else number
