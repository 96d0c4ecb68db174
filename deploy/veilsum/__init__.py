"""Statistics and models of records that stay where they are: the public Python API, and the analyst's side of the platform.

>>> import veilsum
>>> schema = {"columns": [{"kind": "number", "name": "age", "low": 0, "high": 100}], "max_records": 100}
>>> sites = {"north": {"age": [61, 47, 58]}, "south": {"age": [72, 39]}}
>>> with veilsum.simulate(sites, schema) as federation:
...     result = federation.dataset().mean("age", noise="none").run()
>>> result.to_pandas()[["column", "mean"]].round()
  column  mean
0    age  55.0

What ``__all__`` names is stable (docs/api.md); every other module of this package may change between two versions.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from veilsum_node.transport import tls13 as _tls13  # first: it must come before gRPC

if TYPE_CHECKING:
    from veilsum.api.datasets import Dataset
    from veilsum.api.federation import Federation, attach, connect, simulate
    from veilsum.api.models import Classifier, Encoder, Regressor
    from veilsum.api.plans import Plan
    from veilsum.api.results import StudyResult, open_result
    from veilsum.api.studies import Run, Study

_PLACES = {
    "Classifier": "models", "Dataset": "datasets", "Encoder": "models", "Federation": "federation", "Plan": "plans",
    "Regressor": "models", "Run": "studies", "Study": "studies", "StudyResult": "results", "attach": "federation",
    "connect": "federation", "open_result": "results", "simulate": "federation",
}  # fmt: skip

__all__ = [
    "Classifier", "Dataset", "Encoder", "Federation", "Plan", "Regressor", "Run", "Study", "StudyResult", "attach", "connect",
    "open_result", "simulate",
]  # fmt: skip

del _tls13


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: torch and gRPC take seconds."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"veilsum.api.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
