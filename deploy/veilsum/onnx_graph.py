"""Graphs of ONNX as they are written, operator by operator, for opset 17 and ai.onnx.ml 3 (:mod:`.onnx_model`)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, DateColumn, NumberColumn


class Graph:
    """A graph as it is written: each method adds nodes and returns the name of what they compute."""

    def __init__(self) -> None:
        from onnx import TensorProto, helper, numpy_helper

        self._helper, self._from_array = helper, numpy_helper.from_array
        self._types: Any = TensorProto
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._doubles: set[str] = set()

    def type(self, name: str) -> int:
        """The number of an element type."""
        return int(getattr(self._types, name))

    def tensor(self, array: NDArray[Any]) -> Any:
        """An array as an attribute."""
        return self._from_array(array)

    def node(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """One operator; the name of its one output."""
        name = f"{operator}_{len(self._nodes)}"
        self._nodes.append(
            self._helper.make_node(operator, list(inputs), [name], name=name, domain=domain or None, **attributes)
        )
        return name

    def constant(self, value: Any) -> str:
        """An array, or a number of numpy's, as it is."""
        name = f"constant_{len(self._constants)}"
        self._constants.append(self._from_array(np.asarray(value), name))
        return name

    def affine(self, x: str, matrix: Floats, offset: Floats) -> str:
        """x @ matrix.T + offset in float32."""
        weights, bias = (self.constant(array.astype(np.float32)) for array in (matrix, offset))
        return self.node("Gemm", x, weights, bias, transB=1)

    def single(self, x: str) -> str:
        """As float32."""
        return self.node("Cast", x, to=self.type("FLOAT")) if x in self._doubles else x

    def known(self, whole: str | None, values: str, kind: Any = np.float32) -> str:
        """NaN in rows that are not whole."""
        return values if whole is None else self.node("Where", whole, values, self.constant(np.array([[np.nan]], dtype=kind)))

    def input(self, name: str, kind: str, width: int) -> str:
        """(n, width)."""
        self._inputs.append(self._helper.make_tensor_value_info(name, self.type(kind), ["n", width]))
        return name

    def output(self, name: str, value: str, kind: str, *shape: int) -> None:
        """(n, ...)."""
        self._nodes.append(self._helper.make_node("Identity", [value], [name], name=name))
        self._outputs.append(self._helper.make_tensor_value_info(name, self.type(kind), ["n", *shape]))

    def features(self, width: int) -> tuple[str, str]:
        """An encoder's features as the input, with 0 in records that are not finite, and which are."""
        x = self.input("features", "FLOAT", width)
        strange = self.node("Or", self.node("IsNaN", x), self.node("IsInf", x))
        whole = self._all(self.node("Not", strange))
        return self.node("Where", whole, x, self.constant(np.float32(0.0))), whole

    def columns(self, schema: DatasetSchema, *, skip: bool) -> tuple[str, str | None]:
        """Scaled columns (n, d) in the schema's order, 0 where missing, float64; with ``skip``, which records miss none."""
        numbers = [column for column in schema.columns if not isinstance(column, CategoryColumn)]
        categories = [column for column in schema.columns if isinstance(column, CategoryColumn)]
        parts, present = [], []
        if numbers:
            scaled, known = self._numbers(numbers, schema.missing)
            parts.append(scaled)
            present.append(known)
        texts = self.input("categories", "STRING", len(categories)) if categories else ""
        for place, column in enumerate(categories):
            indicators, known = self._indicators(texts, place, column)
            parts.append(indicators)
            present.append(known)
        x = self.node("Concat", *parts, axis=1)
        starts = np.cumsum([0, *(column.width for column in schema.columns)]).tolist()
        order = [
            feature
            for column in [*numbers, *categories]
            for feature in range(starts[schema.columns.index(column)], starts[schema.columns.index(column) + 1])
        ]
        if order != sorted(order):
            x = self.node("Gather", x, self.constant(np.argsort(order)), axis=1)
        self._doubles.add(x)
        return x, self._all(self.node("Concat", *present, axis=1)) if skip else None

    def _numbers(self, columns: list[NumberColumn], missing: tuple[str, ...]) -> tuple[str, str]:
        """Columns clamped to their bounds and mapped to [-1, 1], and which values are there."""
        low, high = (np.array([getattr(column, end) for column in columns], dtype=np.float64) for end in ("low", "high"))
        half = np.array([column.high / 2.0 - column.low / 2.0 for column in columns])
        x = self.input("numbers", "DOUBLE", len(columns))
        strange = self.node("Or", self.node("IsNaN", x), self.node("IsInf", x))
        dates = np.array([isinstance(column, DateColumn) for column in columns])
        for code in _codes(missing):  # such as -9, which no date is
            same = self.node("Equal", x, self.constant(np.where(dates, np.nan, code)))
            strange = self.node("Or", strange, same)
        known = self.node("Not", strange)
        fill = np.array([column.low if column.impute is None else column.impute for column in columns], dtype=np.float64)
        filled = self.node("Where", known, x, self.constant(fill))
        known = self.node("Or", known, self.constant(np.array([column.impute is not None for column in columns])))
        bounded = self.node("Max", self.node("Min", filled, self.constant(high)), self.constant(low))
        parts = self.node("Div", self.node("Sub", bounded, self.constant(low)), self.constant(half))
        one = self.constant(np.float64(1.0))
        scaled = self.node("Clip", self.node("Sub", parts, one), self.constant(np.float64(-1.0)), one)
        return self.node("Where", known, scaled, self.constant(np.float64(0.0))), known

    def _indicators(self, texts: str, place: int, column: CategoryColumn) -> tuple[str, str]:
        """One of each category (n, width), and whether the text is one of them (n, 1)."""
        text = self.node("Gather", texts, self.constant(np.array([place])), axis=1)
        code = self.node(
            "LabelEncoder",
            text,
            domain="ai.onnx.ml",
            keys_strings=list(column.categories),
            values_int64s=list(range(column.width)),
            default_int64=-1 if column.impute is None else column.categories.index(column.impute),
        )
        same = self.node("Equal", code, self.constant(np.arange(column.width)))
        known = self.node("Not", self.node("Less", code, self.constant(np.int64(0))))
        return self.node("Cast", same, to=self.type("DOUBLE")), known

    def _all(self, mask: str) -> str:
        """Whether all of a row (n, d) are true, (n, 1)."""
        number = self.node("Cast", mask, to=self.type("FLOAT"))
        return self.node("Cast", self.node("ReduceMin", number, axes=[1], keepdims=1), to=self.type("BOOL"))

    def build(self) -> Any:
        return self._helper.make_graph(self._nodes, "veilsum", self._inputs, self._outputs, self._constants)


def _codes(missing: tuple[str, ...]) -> list[float]:
    """The numbers among the texts that mean a missing value."""
    found = []
    for text in missing:
        try:
            found.append(float(text) if "_" not in text else np.nan)
        except ValueError:
            continue
    return [code for code in dict.fromkeys(found) if np.isfinite(code)]
