"""How the ``ledger`` commands take times, and show entries and spending."""

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from veilsum_node.errors import Misuse, raising
from veilsum_node.process.console import moment
from veilsum_privacy.dossier.figures import cost, remaining

_UNITS = {"h": 3600, "d": 86400, "w": 7 * 86400}
_ADVICE = "Give a date such as 2026-03-31, a time such as 2026-03-31T12:00, or a span up to now such as 30d, 12h or 8w."


def read_time(text: str, now: int, *, end: bool = False) -> int:
    """A time that somebody typed, as Unix seconds; a date means its first second in UTC, or with ``end`` the next day's.

    Raises:
        Misuse: it is none.
    """
    span = re.fullmatch(r"(\d{1,5})([hdw])", text)
    if span:
        return now - int(span[1]) * _UNITS[span[2]]
    with raising(Misuse(f"{text!r} is not a time.", _ADVICE), on=(ValueError, OverflowError)):
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            day = date.fromisoformat(text) + timedelta(days=1 if end else 0)
            return int(datetime.combine(day, time(), UTC).timestamp())
        stated = datetime.fromisoformat(text)
        return int((stated if stated.tzinfo else stated.replace(tzinfo=UTC)).timestamp())


def entry_row(fields: Mapping[str, Any], study: str | None) -> dict[str, Any]:
    """An entry's plain values as a row for people; ``study`` is how to call its study."""
    return {
        "no.": fields["seq"],
        "time": moment(fields["time"]),
        "kind": fields["kind"],
        "population": fields["population"],
        "study": study,
        "round": fields["round"],
        "what": f"{_size(fields)}{_what(fields)}",
    }


def spending_row(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`spending_fields` returns, for people."""
    shown = {name: cost(fields[name]) for name in ("epsilon", "spent", "alone", "reserved")}
    shown["left"] = remaining(fields["left"])
    shown["estimate"] = "" if fields["estimate"] is None else cost(fields["estimate"])
    named = {**fields, **shown}
    names = {"epsilon": "budget", "reserved": "with open ones", "alone": "against all others"}
    columns = ("population", "epsilon", "delta", "spent", "reserved", "left", "estimate", "alone", "releases")
    return {names.get(name, name): named[name] for name in columns}


def _size(fields: Mapping[str, Any]) -> str:
    return f"{fields['cohort_size']} sites: " if fields["cohort_size"] else ""


def _what(fields: Mapping[str, Any]) -> str:
    detail = fields["detail"]
    match fields["kind"]:
        case "budget":
            rule = f", {detail['adaptive']}" if "adaptive" in detail else ""
            below = "; below what is spent" if detail.get("below_spent") else ""
            return f"epsilon {_figure(detail.get('epsilon'))}{rule}: {detail.get('reason')} ({detail.get('operator')}){below}"
        case "refusal":
            return _refusal(detail)
        case "checkpoint":
            return f"figures up to entry {detail.get('upto')}"
        case "key":
            return "signs with another key from here on"
        case "approval" | "decline":
            why = detail.get("reason") or "no reason given"
            return f"{detail.get('name')} of {detail.get('analyst')}: {why} ({detail.get('operator')})"
        case "expired":
            return f"{detail.get('name')} of {detail.get('analyst')} ended without an answer: {detail.get('why')}"
        case "policy":
            return "; ".join(f"{key}: {new or 'left out'}" for key, (_, new) in detail.get("changes", {}).items())
        case "free":
            return str(detail.get("reason", ""))
        case "receipts":
            return f"shown to {', '.join(str(name) for name in detail.get('cohort', []))}"
    return _mechanism(fields["mechanism"])


def _refusal(detail: Mapping[str, Any]) -> str:
    reasons = detail.get("reasons") or [detail]
    more = [code for code, _ in detail.get("more_reasons", ())]
    codes = ", ".join(dict.fromkeys([*(str(reason.get("code", "")) for reason in reasons), *more]))
    figures = detail.get("figures")
    if not figures:
        return codes
    costs = (figures.get(name) for name in ("after", "reserved"))
    after, reserved = ("infinite" if figure is None else cost(_number(figure)) for figure in costs)
    return f"{codes}: would come to {after} of {_figure(figures.get('budget'))}, {reserved} spent and set aside"


def _mechanism(mechanism: Mapping[str, Any] | None) -> str:
    if mechanism is None:
        return ""
    if mechanism["mechanism"] == "none":
        return "no noise"
    if mechanism["noise"] == "kept":
        return "post-processing of what was released and paid for: costs nothing"
    ratio = int(mechanism["variance"][0]) ** 0.5 / int(mechanism["sensitivity"])
    name = str(mechanism["mechanism"]).replace("discrete-gaussian", "discrete Gaussian")
    rate, steps = _number(mechanism["sampling_rate"]), int(mechanism["steps"])
    sampled = f", a sample of {rate:g}" if rate < 1 else ""
    course = f", of a course of {mechanism['course'][0]}" if "course" in mechanism else ""
    taken = f", {steps} steps" if steps > 1 else ""
    return f"{name} ({mechanism['noise']}), noise multiplier {ratio:.4g}{sampled}{taken}{course}"


def _figure(figure: Any) -> str:
    return "unlimited" if figure is None else f"{_number(figure):g}"


def _number(figure: Any) -> float:
    return float.fromhex(figure) if isinstance(figure, str) else float(figure)
