"""How figures are worded: costs rounded up, what is left rounded down, and what an epsilon means for a person."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from veilsum_node.phrases import rounded

INFINITE = "infinite"
"""How plain values say that a cost has no bound."""

Figure = float | str | None
"""An epsilon in plain values: a number, ``"infinite"``, or None where there is none (a budget without a bound)."""

_LEAST = 1e-6


@dataclass(frozen=True)
class Meaning:
    """What (epsilon, delta) lets anyone conclude about one record, at most.

    Attributes:
        factor: e^epsilon: any conclusion is at most so many times as likely with the record as without it, and delta more.
        advantage: (e^epsilon - 1 + 2 delta) / (e^epsilon + 1): the largest gap between how often a test for the record's
            presence says yes where it is present and where it is not (Kairouz, Oh, Viswanath 2015).
        guess: (1 + advantage) / 2: how often the best guess is right that was a coin's toss without the releases.
    """

    factor: float | str
    advantage: float
    guess: float


def meaning(epsilon: float, delta: float) -> Meaning:
    """What an epsilon that may be infinite bounds."""
    if not math.isfinite(epsilon):
        return Meaning(INFINITE, 1.0, 1.0)
    try:
        factor: float | str = math.exp(epsilon)
    except OverflowError:
        factor = INFINITE
    # (e - 1) / (e + 1) = tanh(epsilon / 2), which neither cancels nor overflows.
    advantage = min(1.0, math.tanh(epsilon / 2) + 2 * delta * math.exp(-epsilon) / (1 + math.exp(-epsilon)))
    return Meaning(factor, advantage, (1 + advantage) / 2)


def plain(value: float) -> float | str:
    """A cost as a plain value."""
    return value if math.isfinite(value) else INFINITE


def cost(value: Figure) -> str:
    """A cost for people: three decimals, two digits where it is small, never smaller than it is."""
    return _rounded(value, ROUND_CEILING)


def remaining(value: Figure) -> str:
    """What is left, or what protects, for people: never larger than it is, and nothing if it is below a millionth."""
    return "0" if isinstance(value, float | int) and 0 <= value < _LEAST else _rounded(value, ROUND_FLOOR)


def exact(value: Figure) -> str:
    """A figure that someone chose, as it was chosen."""
    if value is None or isinstance(value, str):
        return value or "unlimited"
    return _without_zeros(Decimal(repr(value)))


def small(value: float) -> str:
    """A delta: 0.00001 rather than 1e-05, as far as that can be read."""
    return exact(value) if value >= 1e-6 else f"{value:g}".replace("e-0", "e-")


def one_in(value: float) -> str:
    """A delta as a chance: ``1 in 100,000``; rounded towards the larger chance."""
    return f"1 in {math.floor(1 / value * (1 + 1e-12)):,}"


def of_hundred(share: float) -> str:
    """A share of cases out of a hundred, rounded up to a tenth."""
    return _without_zeros((Decimal(repr(share)) * 100).quantize(Decimal("0.1"), ROUND_CEILING))


def times(factor: float | str) -> str:
    """A factor, rounded up to two digits behind the point, or to whole numbers where it is large."""
    if isinstance(factor, str):
        return factor
    if factor >= 1e6:
        return "more than a million"
    places = Decimal("0.01") if factor < 100 else Decimal(1)
    return f"{_without_zeros(Decimal(repr(factor)).quantize(places, ROUND_CEILING), thousands=True)}"


def grouped(value: float) -> str:
    """A whole number, or the whole part of a standard deviation, with separators for thousands."""
    return f"{math.floor(value):,}"


def ratio(value: float) -> str:
    """A noise multiplier: four digits, rounded down, for less noise would cost more."""
    if value == 0:
        return "0"
    digits = Decimal(repr(value))
    return _without_zeros(digits.quantize(Decimal(1).scaleb(digits.adjusted() - 3), ROUND_FLOOR))


def moment(seconds: int) -> str:
    """Unix seconds for people, in UTC to the minute."""
    return _datetime(seconds).strftime("%Y-%m-%d %H:%M")


def day(seconds: int) -> str:
    """Unix seconds for people: the day in UTC."""
    return _datetime(seconds).strftime("%Y-%m-%d")


def _datetime(seconds: int) -> datetime:
    return datetime.fromtimestamp(min(max(seconds, 0), 253402300799), UTC)  # the years that a datetime knows


def _rounded(value: Figure, rounding: str) -> str:
    if value is None or isinstance(value, str):
        return value or "unlimited"
    return rounded(value, rounding)


def _without_zeros(value: Decimal, *, thousands: bool = False) -> str:
    text = f"{value:,f}" if thousands else f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
