"""Messages with bounds: a class says each field's number, kind and largest size, and one reader holds all bytes to it.

The form on the wire is protobuf's (https://protobuf.dev/programming-guides/encoding), of which the coordinator's objects are
made too, so that a front hands those on as they came and no library for it runs beside keys and records. The reader knows
integers without sign, doubles, bytes, text and messages, and refuses whatever else there is. It is held against protobuf's own
in ``tests/unit/test_boundary_encoding.py``.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, cast, dataclass_transform, runtime_checkable

from veilsum_node.errors import HostileInput

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Wire types."""

LARGEST_FIELD = 2**29 - 1

_SHORT = 5
"""Bytes at most of a field's key and of a size."""

_DOUBLE = struct.Struct("<d")

Kind = Literal["number", "real", "octets", "text", "message", "memory"]


@runtime_checkable
class Sealed(Protocol):
    """Memory that is passed beside a message, by a descriptor; nobody can change or shorten it any more.

    Attributes:
        size: bytes.
    """

    size: int

    def view(self) -> memoryview:
        """Its bytes, to be read; they stay as long as the view is kept."""


@dataclass(frozen=True)
class Rule:
    """What holds of one field.

    Attributes:
        number: of the field in the encoding.
        kind: of its value.
        most: of a number, the largest; of octets, text and memory, bytes at most.
        least: of octets and text, bytes at least.
        many: for a repeated field, values at most; 0 for one value.
        of: for messages, their class.
        optional: whether None stands for a field that is not there, apart from an empty one.
        seen: whether octets are read where the message lies, without a copy of their own.
    """

    number: int
    kind: Kind
    most: int = 0
    least: int = 0
    many: int = 0
    of: "type[Message] | None" = None
    optional: bool = False
    seen: bool = False

    def check(self, name: str, value: object) -> None:
        """Insist that a value of the field keeps the rule.

        Raises:
            HostileInput: it does not.
        """
        if self.many:
            if not isinstance(value, tuple) or len(value) > self.many:
                raise HostileInput(f"{name} must be a list of at most {self.many} values.")
            for item in value:
                self._check_one(name, item)
        elif value is not None or not self.optional:
            self._check_one(name, value)

    def _check_one(self, name: str, value: object) -> None:
        if self.kind == "message" and isinstance(value, Message) and type(value) is self.of:
            value.check()
        elif not self._holds(value):
            raise _outside(name)

    def _holds(self, value: object) -> bool:
        match self.kind, value:
            case "octets", bytes() | memoryview():  # the frequent kinds first; a view is of who sends, or seen
                return self.least <= (len(value) if isinstance(value, bytes) else value.nbytes) <= self.most
            case "text", str():
                return (value.isascii() or not _SURROGATES & set(value)) and self.least <= len(value.encode()) <= self.most
            case "number", int() if not isinstance(value, bool):
                return 0 <= value <= self.most
            case "real", float():
                return math.isfinite(value)
            case "memory", Sealed():
                return value.size <= self.most
        return False


_SURROGATES = frozenset(map(chr, range(0xD800, 0xE000)))


@dataclass(frozen=True)
class _Table:
    rules: dict[str, Rule]
    numbers: dict[int, tuple[str, Rule]]
    memory: str | None
    needed: tuple[str, ...]  # what keeps no rule where it is not there


@dataclass_transform(frozen_default=True)
class Message:
    """Base of all messages, which are frozen dataclasses whose fields are made by the functions below.

    Attributes:
        grows: whether a later version may add fields, which are passed over: so it is with what a coordinator sends. Between
            processes of one installation there is one version, and an unknown field is refused.
    """

    grows: ClassVar[bool] = False
    table: ClassVar[_Table]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        found: dict[str, Rule] = {item.name: item.metadata["rule"] for item in fields(cast(Any, dataclass(frozen=True)(cls)))}
        numbered = {rule.number: (name, rule) for name, rule in found.items() if rule.kind != "memory"}
        beside = next((name for name, rule in found.items() if rule.kind == "memory"), None)
        needed = tuple(name for name, own in found.items() if own.least or (own.of and not own.many and own.of.table.needed))
        cls.table = _Table(found, numbered, beside, needed)

    def check(self) -> None:
        """Insist that every field keeps its bounds.

        Raises:
            HostileInput: one does not; the message names it, and no value.
        """
        for name, rule in rules(type(self)).items():
            rule.check(f"{type(self).__name__}.{name}", getattr(self, name))

    def to_bytes(self) -> bytes:
        """The message's bytes, without what is in :attr:`memory`; raises HostileInput where a field breaks its bounds: whoever
        sends knows them too."""
        return b"".join(self.to_pieces())

    def to_pieces(self) -> list[bytes | memoryview]:
        """The same in pieces, of which large ones are the fields' own."""
        self.check()
        parts: list[bytes | memoryview] = []
        _say(self, parts)
        return parts

    @property
    def memory(self) -> Sealed | None:
        """What goes beside the message by a descriptor; at most one field holds such."""
        name = self.table.memory
        return None if name is None else getattr(self, name)


R_co = TypeVar("R_co", bound=Message, covariant=True)
M = TypeVar("M", bound=Message)


class Inquiry(Message, Generic[R_co]):
    """A message that is answered.

    Attributes:
        code: of the message in a frame.
        answer: the class of its answer; besides it, a failure is the only one.
        most: bytes that the request may have.
        most_answered: bytes that its answer may have.
        seconds: how long its answer is waited for.
    """

    code: ClassVar[int]
    answer: ClassVar[type[Message]]
    most: ClassVar[int]
    most_answered: ClassVar[int]
    seconds: ClassVar[float]


def number(index: int, most: int = 2**64 - 1, *, default: int = 0) -> Any:
    """A field of an integer from 0 to ``most``."""
    return field(default=default, metadata={"rule": Rule(index, "number", most)})


def real(index: int) -> Any:
    """A field of a finite double."""
    return field(default=0.0, metadata={"rule": Rule(index, "real")})


def octets(index: int, most: int, *, least: int = 0, seen: bool = False) -> Any:
    """A field of bytes; one that is not there is empty. Of one that is ``seen`` who reads it has a view."""
    return field(default=b"", repr=False, metadata={"rule": Rule(index, "octets", most, least, seen=seen)})


def optional_octets(index: int, most: int) -> Any:
    """A field of bytes that may be None."""
    return field(default=None, repr=False, metadata={"rule": Rule(index, "octets", most, optional=True)})


def text(index: int, most: int, *, shown: bool = True) -> Any:
    """A field of text, of at most so many bytes in UTF-8; one that is not ``shown`` stands in no representation."""
    return field(default="", repr=shown, metadata={"rule": Rule(index, "text", most)})


def one(index: int, of: type[Message]) -> Any:
    """A field of one message; one that is not there is that message with nothing in it."""
    return field(default_factory=of, metadata={"rule": Rule(index, "message", of=of)})


def numbers(index: int, count: int, most: int = 2**64 - 1) -> Any:
    """A field of at most ``count`` integers from 0 to ``most``."""
    return field(default=(), metadata={"rule": Rule(index, "number", most, many=count)})


def texts(index: int, count: int, most: int) -> Any:
    """A field of at most ``count`` texts of at most so many bytes each."""
    return field(default=(), metadata={"rule": Rule(index, "text", most, many=count)})


def blobs(index: int, count: int, most: int) -> Any:
    """A field of at most ``count`` byte strings of at most so many bytes each, of which who reads them has views."""
    return field(default=(), repr=False, metadata={"rule": Rule(index, "octets", most, many=count, seen=True)})


def memory(most: int) -> Any:
    """A field of memory that goes beside the message, of at most so many bytes; one a message, and not in one within."""
    return field(default=None, repr=False, metadata={"rule": Rule(0, "memory", most, optional=True)})


def several(index: int, of: type[Message], count: int) -> Any:
    """A field of at most ``count`` messages."""
    return field(default=(), metadata={"rule": Rule(index, "message", of=of, many=count)})


def rules(of: type[Message]) -> dict[str, Rule]:
    """What holds of a message's fields, by name, in their order."""
    return of.table.rules


def read(data: bytes | memoryview, of: type[M], beside: Sealed | None = None) -> M:
    """Read a message; ``beside`` is what came with it by a descriptor.

    Raises:
        HostileInput: these are not the bytes of such a message, or a field breaks its bounds.
    """
    message, table = _read(memoryview(data), of), of.table
    if beside is not None:
        if (name := table.memory) is None:
            raise HostileInput(f"{of.__name__} has no memory beside it.")
        table.rules[name].check(f"{of.__name__}.{name}", beside)
        message = replace(cast(Any, message), **{name: beside})
    return message


def _read(data: memoryview, of: type[M]) -> M:
    found: dict[str, Any] = {}
    table = of.table
    for index, wire, value in _fields(data):
        entry = table.numbers.get(index)
        if entry is None:
            if not of.grows:
                raise HostileInput(f"{of.__name__} has no field {index}.")
            continue
        name, rule = entry
        if not rule.many:
            if rule.kind == "message" and name in found:
                raise HostileInput(f"{of.__name__}.{name} comes twice.")
            found[name] = _value(of, name, rule, wire, value)
            continue
        kept = found.setdefault(name, [])
        if rule.kind == "number" and wire == LENGTH:
            kept += _packed(f"{of.__name__}.{name}", value, rule)
        else:
            kept.append(_value(of, name, rule, wire, value))
        if len(kept) > rule.many:
            raise HostileInput(f"{of.__name__}.{name} has more than {rule.many} values.")
    if missing := [name for name in table.needed if name not in found]:
        raise _outside(f"{of.__name__}.{missing[0]}")
    return of(**{name: tuple(value) if type(value) is list else value for name, value in found.items()})


def _value(of: type[Message], name: str, rule: Rule, wire: int, value: Any) -> Any:
    """The value that one field on the wire holds, within its bounds."""
    if wire == LENGTH and rule.kind == "message" and rule.of is not None:
        return _read(value, rule.of)
    if wire == LENGTH and rule.kind in ("octets", "text"):
        if len(value) > rule.most:
            raise HostileInput(f"{of.__name__}.{name} has more than {rule.most} bytes.")
        if len(value) < rule.least:
            raise _outside(f"{of.__name__}.{name}")
        try:
            return str(value, "utf-8") if rule.kind == "text" else value if rule.seen else bytes(value)
        except UnicodeDecodeError as error:
            raise HostileInput(f"{of.__name__}.{name} must be UTF-8.") from error
    if (wire, rule.kind) not in ((VARINT, "number"), (FIXED64, "real")):
        raise HostileInput(f"{of.__name__}.{name} has another kind of value.")
    found = value if wire == VARINT else _DOUBLE.unpack(value)[0]
    if found > rule.most if wire == VARINT else not math.isfinite(found):
        raise _outside(f"{of.__name__}.{name}")
    return found


def _outside(name: str) -> HostileInput:
    return HostileInput(f"{name} is not a value of its kind within its bounds.")


def _packed(name: str, data: memoryview, rule: Rule) -> list[int]:
    found, position = list[int](), 0
    while position < len(data):
        value, position = _varint(data, position)
        found.append(value)
        if len(found) > rule.many:
            raise HostileInput("A list has more numbers than it may.")
    if max(found, default=0) > rule.most:
        raise _outside(name)
    return found


def _fields(data: memoryview) -> Iterator[tuple[int, int, Any]]:
    position, end = 0, len(data)
    while position < end:
        key, position = _varint(data, position, _SHORT)
        index, wire = key >> 3, key & 7
        if not 0 < index <= LARGEST_FIELD:
            raise HostileInput("A field has no number that there is.")
        if wire == LENGTH:
            size, position = _varint(data, position, _SHORT)
        elif wire == VARINT:
            value, position = _varint(data, position)
            yield index, wire, value
            continue
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise HostileInput("A field has a wire type that is not used.")
        if size > end - position:
            raise HostileInput("A field ends beyond its message.")
        yield index, wire, data[position : position + size]
        position += size


def _varint(data: memoryview, position: int, most: int = 10) -> tuple[int, int]:
    if position < len(data) and (value := data[position]) < 0x80:
        return value, position + 1
    value = shift = 0
    for byte in data[position : position + most]:
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 2**64:
                break
            return value, position
        shift += 7
    raise HostileInput("A number does not end, or has more than 64 bits.")


def _number_bytes(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _say(message: Message, parts: list[bytes | memoryview]) -> None:
    for name, rule in rules(type(message)).items():
        value = getattr(message, name)
        if rule.kind == "memory":
            continue
        if rule.many:
            for item in value:
                _say_one(rule, item, parts)
        elif rule.kind == "message" or (value is not None and (value or rule.optional)):
            _say_one(rule, value, parts)


def _say_one(rule: Rule, value: Any, parts: list[bytes | memoryview]) -> None:
    if rule.kind == "number":
        parts.append(_number_bytes(rule.number << 3 | VARINT) + _number_bytes(value))
        return
    if rule.kind == "real":
        parts.append(_number_bytes(rule.number << 3 | FIXED64) + _DOUBLE.pack(value))
        return
    inner: list[bytes | memoryview] = []
    if rule.kind == "message":
        _say(value, inner)
    else:
        inner.append(value.encode() if rule.kind == "text" else memoryview(value).cast("B"))
    parts.append(_number_bytes(rule.number << 3 | LENGTH) + _number_bytes(sum(map(len, inner))))
    parts += inner
