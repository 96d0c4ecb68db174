"""Graphs of primitives: nodes with shapes that are checked when they are made, and their bytes.

Shapes are of one record: a node of shape (p,) stands for p values of each record. Nothing here sees a record.
"""

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.rows import primitives
from veilsum_privacy.mechanism.rows.primitives import PRIMITIVES, Kind, Options, Spec

MOST_NODES = 2**18
MOST_VALUES, MOST_MAPPED = 2**22, 2**26
"""The most values of one node, for one record; and of a node that an opaque map gives."""

_NOTHING: Options = MappingProxyType({})
_NONE: Mapping[str, NDArray[Any]] = MappingProxyType({})
_MAGIC = b"veilsum.rows.1\n"
_DTYPES: Mapping[Kind, str] = {"real": "<f8", "whole": "<i8", "truth": "|b1"}


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """A primitive on the values of other nodes.

    Attributes:
        primitive: its name, of :data:`~.primitives.PRIMITIVES`.
        inputs: nodes whose values it takes.
        options: public numbers and texts.
        arrays: public arrays that belong to it; nobody can write to them.
        spec: shape and kind of its values.
    """

    primitive: str
    inputs: "tuple[Node, ...]" = field(repr=False)  # a graph whose nodes meet again would be told without end
    options: Options
    arrays: tuple[NDArray[Any], ...]
    spec: Spec


def node(
    primitive: str, inputs: Sequence[Node] = (), arrays: Sequence[NDArray[Any]] = (), **options: int | str | tuple[int, ...]
) -> Node:
    """A node of a primitive.

    Raises:
        HostileInput: the primitive is not known, or it does not take such inputs.
    """
    rule = PRIMITIVES.get(primitive)
    if rule is None:
        raise HostileInput(f"There is no primitive {primitive!r}.")
    kept = tuple(map(frozen, arrays))
    spec = rule.spec([each.spec for each in inputs], options, kept)
    if math.prod(spec.shape) > (MOST_MAPPED if primitive == "opaque" else MOST_VALUES):
        raise HostileInput(f"The primitive {primitive!r} makes {math.prod(spec.shape)} values of a record.")
    return Node(primitive, tuple(inputs), MappingProxyType(dict(options)) if options else _NOTHING, kept, spec)


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """A public array, of one of the three kinds, that can never be written to: its memory is that of bytes. One whose memory
    is that already is not copied.

    Raises:
        HostileInput: it is of another type.
    """
    kind = primitives.kind_of(np.asarray(array).dtype)
    plain = owner = np.asarray(array, dtype=_DTYPES[kind])
    while isinstance(owner, np.ndarray):
        owner = owner.base  # type: ignore[assignment]
    if isinstance(owner, bytes) and plain.flags.c_contiguous and plain.flags.aligned:
        return plain.view()
    copied: NDArray[Any] = np.frombuffer(plain.tobytes(), dtype=plain.dtype).reshape(plain.shape)
    return copied


class Step(NamedTuple):
    """A node of a graph, whose inputs are steps before it."""

    node: Node
    inputs: tuple[int, ...]


class RowGraph:
    """What is computed of a record: steps, each on earlier ones, of which the last gives the row.

    Equal steps stand once, and all lead to the last one.

    Attributes:
        steps: in an order in which they can be computed.
    """

    def __init__(self, root: Node) -> None:
        """See the class.

        Raises:
            HostileInput: it has more than :data:`MOST_NODES` steps.
        """
        steps: list[Step] = []
        known: dict[tuple[Any, ...], int] = {}
        places: dict[int, int] = {}
        for each in _in_order(root):
            inputs = tuple(places[id(given)] for given in each.inputs)
            key: tuple[Any, ...] = each.primitive, inputs, tuple(sorted(each.options.items())), tuple(map(_form, each.arrays))
            if each.arrays and key in known:  # only then it matters what is in them
                known[*key, _contents(steps[known[key]].node)] = known[key]
                key = *key, _contents(each)
            if key not in known:
                known[key] = len(steps)
                steps.append(Step(each, inputs))
            places[id(each)] = known[key]
        if len(steps) > MOST_NODES:
            raise HostileInput(f"A graph of {len(steps)} steps is too large.")
        self.steps: tuple[Step, ...] = tuple(steps)

    @property
    def root(self) -> Node:
        """The node whose values are the row."""
        return self.steps[-1].node

    @property
    def digest(self) -> bytes:
        """SHA-256 of its bytes."""
        return hashlib.sha256(self.to_bytes()).digest()

    def to_bytes(self, known: Mapping[str, NDArray[Any]] = _NONE) -> bytes:
        """The graph as bytes that :meth:`from_bytes` reads: a header in JSON, then its arrays one after another, but for those
        that lie in the memory of an array that the reader knows by a name: of these the name, once."""
        told, arrays, names = [], list[bytes](), {_memory(array): name for name, array in known.items()}
        for step in self.steps:
            each = step.node
            about: dict[str, Any] = {"is": each.primitive, "of": step.inputs}
            if each.options:
                about["with"] = dict(each.options)
            if each.arrays:
                named = [(array, names.pop(_memory(array), None)) for array in each.arrays]
                about["arrays"] = [
                    [primitives.kind_of(array.dtype), array.shape, *([] if name is None else [name])] for array, name in named
                ]
                arrays += [array.tobytes() for array, name in named if name is None]
            told.append(about)
        header = json.dumps(told, separators=(",", ":"), sort_keys=True).encode()
        return b"".join([_MAGIC, struct.pack("<Q", len(header)), header, *arrays])

    @classmethod
    def from_bytes(cls, data: bytes, known: Mapping[str, NDArray[Any]] = _NONE) -> "RowGraph":
        """Read a graph; each node is made anew, so that all that a trace checks is checked again.

        Args:
            known: arrays that it may name, each once, so that it stays as large as its bytes and these.

        Raises:
            HostileInput: these bytes do not hold a graph.
        """
        try:
            return cls(_read(memoryview(data), dict(known)))
        except HostileInput:
            raise
        except Exception as error:  # whoever wrote them chose what it would be
            raise HostileInput("The value given is not a graph.") from error


def _read(data: memoryview, known: dict[str, NDArray[Any]]) -> Node:
    start = len(_MAGIC) + 8
    if data[: len(_MAGIC)] != _MAGIC:
        raise HostileInput("The value given is not a graph.")
    place = start + struct.unpack("<Q", data[len(_MAGIC) : start])[0]
    told = json.loads(bytes(data[start:place]))
    if not told or len(told) > MOST_NODES:
        raise HostileInput(f"A graph has 1 to {MOST_NODES} steps.")
    nodes: list[Node] = []
    for about in told:
        arrays = []
        for kind, lengths, *names in about.get("arrays", ()):
            shape = tuple(int(length) for length in lengths)
            if names:
                (name,) = names
                arrays.append(known.pop(name).astype(_DTYPES[kind], casting="no", copy=False).reshape(shape))
                continue
            size = math.prod(shape) * np.dtype(_DTYPES[kind]).itemsize
            if min(shape, default=0) < 0 or place + size > len(data):
                raise HostileInput("A graph's array is cut off.")
            arrays.append(np.frombuffer(data[place : place + size], dtype=_DTYPES[kind]).reshape(shape))
            place += size
        options = {name: tuple(value) if isinstance(value, list) else value for name, value in about.get("with", {}).items()}
        inputs = [nodes[index] for index in about["of"] if 0 <= index < len(nodes)]
        if len(inputs) != len(about["of"]):
            raise HostileInput("A step of a graph takes one that is not before it.")
        nodes.append(node(about["is"], inputs, arrays, **options))
    if place != len(data):
        raise HostileInput("A graph has bytes beyond its end.")
    return nodes[-1]


def _in_order(root: Node) -> Iterator[Node]:
    """All nodes that lead to one, each once, after those that it takes."""
    done: set[int] = set()
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        each, complete = stack.pop()
        if id(each) in done:
            continue
        if complete:
            done.add(id(each))
            yield each
        else:
            stack.append((each, True))
            stack.extend((given, False) for given in reversed(each.inputs) if id(given) not in done)


def _form(array: NDArray[Any]) -> tuple[object, ...]:
    return array.shape, array.dtype.str


def _contents(each: Node) -> tuple[bytes, ...]:
    return tuple(hashlib.sha256(np.ascontiguousarray(array).data).digest() for array in each.arrays)


def _memory(array: NDArray[Any]) -> tuple[object, ...]:
    """Where the bytes of an array lie, and what they are, whatever its shape; arrays of one memory hold the same."""
    return array.ctypes.data if array.flags.c_contiguous else id(array), array.dtype.str, array.size
