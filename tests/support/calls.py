"""Functions that do something beside what they are called for."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def then(call: Callable[P, R], after: Callable[[], None]) -> Callable[P, R]:
    """The same function, after each call of which ``after`` is called."""

    @wraps(call)
    def both(*arguments: P.args, **named: P.kwargs) -> R:
        found = call(*arguments, **named)
        after()
        return found

    return both
