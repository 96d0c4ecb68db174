"""Rows as frames of the libraries that scientists use, which are imported only when they are asked for."""

from collections.abc import Mapping, Sequence
from typing import Any

from veilsum.exports import flat_rows
from veilsum_node.errors import ConfigurationError, raising
from veilsum_node.process.software import install_extra


def pandas_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows as a pandas frame, one column a key; a figure's interval in columns ``mean_low``, ``mean_high``.

    Raises:
        ConfigurationError: pandas is not installed.
    """
    advice = f"Install it with: {install_extra('notebook')}; or use to_arrow() or rows()."
    with raising(ConfigurationError("pandas is not installed.", advice), on=ImportError):
        import pandas
    return pandas.DataFrame(flat_rows(rows))


def arrow_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows as an Arrow table, which polars, DuckDB and others take as it is."""
    import pyarrow as pa

    flat = [_told(row) for row in flat_rows(rows)]
    mixed = {name for name in (flat[0] if flat else ()) if len({_kind(row[name]) for row in flat} - {""}) > 1}
    return pa.Table.from_pylist(
        [{name: _text(value) if name in mixed else value for name, value in row.items()} for row in flat]
    )


def _told(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose values Arrow holds: lists and the like as text."""
    return {
        name: value if value is None or isinstance(value, bool | int | float | str) else str(value)
        for name, value in row.items()
    }


def _kind(value: Any) -> str:
    """What a column holds one of: truths, numbers or texts; empty for None."""
    if value is None:
        return ""
    return "truth" if isinstance(value, bool) else "number" if isinstance(value, int | float) else "text"


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
