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
    """A copy of a public array, of one of the three kinds, that can never be written to: its memory is that of bytes.

    Raises:
        HostileInput: it is of another type.
    """
    kind = primitives.kind_of(np.asarray(array).dtype)
    plain = np.asarray(array, dtype=_DTYPES[kind])
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
            key = each.primitive, inputs, tuple(sorted(each.options.items())), tuple(map(_identity, each.arrays))
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

    def to_bytes(self) -> bytes:
        """The graph as bytes that :meth:`from_bytes` reads: a header in JSON, then its arrays one after another."""
        told, arrays = [], list[bytes]()
        for step in self.steps:
            each = step.node
            about: dict[str, Any] = {"is": each.primitive, "of": step.inputs}
            if each.options:
                about["with"] = dict(each.options)
            if each.arrays:
                about["arrays"] = [[primitives.kind_of(array.dtype), array.shape] for array in each.arrays]
                arrays += [array.tobytes() for array in each.arrays]
            told.append(about)
        header = json.dumps(told, separators=(",", ":"), sort_keys=True).encode()
        return b"".join([_MAGIC, struct.pack("<Q", len(header)), header, *arrays])

    @classmethod
    def from_bytes(cls, data: bytes) -> "RowGraph":
        """Read a graph; each node is made anew, so that all that a trace checks is checked again.

        Raises:
            HostileInput: these bytes do not hold a graph.
        """
        try:
            return cls(_read(data))
        except HostileInput:
            raise
        except (ValueError, TypeError, KeyError, IndexError, struct.error, RecursionError) as error:
            raise HostileInput("The value given is not a graph.") from error


def _read(data: bytes) -> Node:
    start = len(_MAGIC) + 8
    if data[: len(_MAGIC)] != _MAGIC:
        raise HostileInput("The value given is not a graph.")
    place = start + struct.unpack("<Q", data[len(_MAGIC) : start])[0]
    told = json.loads(data[start:place])
    if not told or len(told) > MOST_NODES:
        raise HostileInput(f"A graph has 1 to {MOST_NODES} steps.")
    nodes: list[Node] = []
    for about in told:
        arrays = []
        for kind, lengths in about.get("arrays", ()):
            shape = tuple(int(length) for length in lengths)
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


def _identity(array: NDArray[Any]) -> tuple[object, ...]:
    return array.shape, array.dtype.str, hashlib.sha256(np.ascontiguousarray(array).data).digest()
