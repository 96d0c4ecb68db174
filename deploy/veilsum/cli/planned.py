"""How a planned study is shown to a scientist: what it will tell, what it costs whom, and whether it is worth that."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

from rich.console import Console

from veilsum.cli.display import size_text
from veilsum_node.phrases import counted, listed
from veilsum_node.process.console import print_fields, print_line, print_rows, terminal_text
from veilsum_privacy.dossier.asked import asked_facts
from veilsum_privacy.dossier.figures import cost as rounded_up

if TYPE_CHECKING:
    from veilsum.forecasts import Forecast
    from veilsum.plan import PlannedPart, StudyPlan

SHOWN = 6
"""Quantities that are shown of a part that is not the main one, unless all are asked for."""

SHOWN_MAIN, SHOWN_SITES, MOST_BLAMED = 12, 12, 3
"""Quantities of a main part, participants, and parts that are blamed."""

LARGEST_ODDS = 10.0
"""Epsilon up to which odds are shown: beyond it they could change by a factor of more than 20,000."""


def print_plan(plan: StudyPlan, *, everything: bool = False) -> None:
    """Show a plan; ``everything``: all quantities and participants."""
    print_fields(_asks(plan), title=f"Study {plan.study.name} asks", as_json=False)
    if plan.cost.epsilon is not None:
        _print_guarantees(plan)
        _print_losses(plan, everything=everything)
    _print_parts(plan, everything=everything)
    for line in (*plan.notes, *_conclusions(plan)):
        _say(line)


def _asks(plan: StudyPlan) -> dict[str, object]:
    cost, facts = plan.cost, asked_facts(plan.study)
    in_all = " in all" if cost.rounds > 1 else ""
    sends = f"{size_text(cost.upload)}{in_all}; and fetches {size_text(cost.fetch)} of receipts and answers"
    guarantee = (
        f"epsilon {rounded_up(cost.epsilon)} at delta {cost.delta:g} for one {cost.unit}, over the whole study"
        if cost.epsilon
        else ""
    )
    return {
        **{name.replace("_", " "): text for name, text in plan.study.statements.items()},
        "asks for": facts["computes"],
        "reads": facts["reads"],
        "participants": _first_of(cost.participants),
        "smallest cohort": cost.min_cohort,
        "computes": ", ".join(
            f"{task.task} ({counted(task.values, 'value')} of {task.lane_bits} bits, {task.disclosure})" for task in cost.tasks
        ),
        "noise": _noise(plan),
        "guarantee": guarantee or "none: exact sums, released without noise",
        "each sends": sends,
        "takes": f"{_rounds(cost.rounds)}, {_duration(cost.seconds)} at 10 Mbit/s once every site answers",
    }


_NOISE = {
    "distributed": "distributed: every site adds a share of it",
    "local": "local: every site adds all that its records need",
    "none": "none",
    "training": "local, in training: every site adds all that its records need in each of its steps",
}


def _noise(plan: StudyPlan) -> str:
    text = _NOISE["training" if any(task.local_steps for task in plan.study.tasks) else plan.cost.noise]
    if plan.colluder_cost is None:
        return text
    number, sites = plan.study.privacy.assumed_colluders, plan.study.sites
    return f"{text}; not counting {number} of {sites} shares makes it {_percent(plan.colluder_cost)} wider"


def _print_guarantees(plan: StudyPlan) -> None:
    """Who can learn how much about one record: epsilon, and what it means for someone's belief."""
    cost, number = plan.cost, plan.study.privacy.assumed_colluders
    readers = "the coordinator and everyone who sees the result"
    if cost.noise == "distributed" and plan.alone != cost.epsilon:
        readers += " with one of the sites" if number == 1 else f" with up to {number} of the sites"
    rows = [_guarantee(readers, cost.epsilon)]
    if plan.alone != cost.epsilon:
        rows.append(_guarantee("all of them with every other site, each subtracting its own noise", plan.alone))
    else:
        rows[0]["against, working together"] = f"{readers}, with every other site"
    print_rows(rows, title=f"What one {cost.unit} at a site may lose by this study", as_json=False)


def _guarantee(whom: str, epsilon: float | None) -> dict[str, object]:
    if epsilon is None:
        return {"against, working together": whom, "epsilon": "no bound", "odds about it change by at most": "no bound"}
    odds = f"a factor of {figure(math.exp(epsilon))}" if epsilon <= LARGEST_ODDS else "nothing that means protection"
    return {"against, working together": whom, "epsilon": rounded_up(epsilon), "odds about it change by at most": odds}


def _print_losses(plan: StudyPlan, *, everything: bool) -> None:
    if plan.losses is None:
        _say(
            f"What your studies of dataset {plan.study.dataset!r} have cost so far is not known: "
            "no coordinator was asked, or it cannot tell."
        )
    else:
        rows = [
            {
                "participant": loss.participant,
                "by your studies so far": _epsilon(loss.before),
                "after this one": _epsilon(loss.after),
            }
            for loss in plan.losses
        ]
        shown = rows if everything else rows[:SHOWN_SITES]
        title = f"Epsilon on dataset {plan.study.dataset!r} at delta {plan.cost.delta:g}"
        print_rows(shown, title=title, as_json=False)
        if len(shown) < len(rows):
            _say(f"{len(rows) - len(shown)} more participants: --all.")
    _say("A site's own ledger holds others' studies too. Its budget stays private: it refuses what would go beyond it.\n")


def _print_parts(plan: StudyPlan, *, everything: bool) -> None:
    if not plan.parts:
        return
    many = plan.records * len(plan.cost.participants)
    where = f"{plan.records:,} records at every site" if plan.records_stated else f"if every site had {plan.records:,} records"
    rows = []
    for part in plan.parts:
        most = SHOWN_MAIN if part.main else SHOWN
        whole = everything or len(part.forecasts) <= most + 2
        rows += [_row(item) for item in (part.forecasts if whole else part.forecasts[:most])]
        if not whole:
            empty: dict[str, object] = dict.fromkeys(rows[0], "")
            rows.append(empty | {"quantity": f"... and {len(part.forecasts) - most} more of {part.name}: --all"})
    print_rows(rows, title=f"95% intervals of a rehearsal on typical records, {where}", as_json=False)
    if plan.assumed:
        named = listed(plan.assumed[:SHOWN_SITES]) + (" and others" if len(plan.assumed) > SHOWN_SITES else "")
        _say(
            f"Assumed of {named}: levels are equally frequent; numbers have their mean a sixth of their range below the middle"
            " and as large a standard deviation. State public guesses as `expected` in the study; they stay in this plan.\n"
        )
    if not plan.records_stated:
        _say(f"study.toml states no expected_records, so the schema's max_records is taken, {many:,} in all.\n")
    rows = [
        {
            "part of the result": f"{part.name} (main)" if part.main else part.name,
            "quantities": len(part.forecasts),
            "half of them within": _percent(part.typical),
            "all within": _percent(part.widest),
            "told": _percent(part.told),
            "verdict": part.outlook.value,
        }
        for part in plan.parts
    ]
    print_rows(rows, title="As a share of the expected size", as_json=False)


def _row(item: Forecast) -> dict[str, object]:
    unit = f" {item.unit}" if item.unit else ""
    return {
        "quantity": item.quantity,
        "known to": f"± {figure(item.half_width)}{unit}" if math.isfinite(item.half_width) else "lost in the noise",
        "against": figure(item.size, 3),
        "share": _percent(item.share),
        "told": _percent(item.told),
    }


def _conclusions(plan: StudyPlan) -> list[str]:
    from veilsum.plan import NOTHING_SHARE, WEAK_SHARE, Outlook, Verdict
    from veilsum_privacy.accounting.deltas import delta_warning

    if plan.verdict is Verdict.EXACT:
        return [f"Verdict: {plan.verdict.value}. Nothing bounds what the exact sums tell about one {plan.cost.unit}."]
    if plan.verdict is Verdict.NOT_FORECAST:
        return [
            f"Verdict: {plan.verdict.value}. What noise leaves of a model that is trained in many steps depends on the"
            " records. Try it on public or made records of the same size: veilsum simulate.",
            *_budget(plan),
            *_coarse(plan),
        ]
    lines = [f"Verdict: {plan.verdict.value}{'' if plan.records_stated else f', if every site has {plan.records:,} records'}."]
    if delta_warning(plan.study, plan.records):
        lines[0] += " But its delta guarantees too little, as is said above."
    if plan.blame:
        worst = [f"{part.name} ({_why(part)})" for part in plan.blame[:MOST_BLAMED]]
        more = len(plan.blame) - len(worst)
        lines.append(f"What keeps it from being worth it: {listed(worst)}{f', and {more} more' if more else ''}.")
    if plan.costliest is not None:
        share = plan.weights[plan.costliest]
        lines.append(
            f"Of what one {plan.cost.unit} adds, {_percent(share)} is for {plan.costliest}: without that question the noise of"
            f" all others would be about {_percent(1.0 - math.sqrt(1.0 - share))} smaller."
        )
    lost = [part.name for part in plan.parts if part.outlook is Outlook.NOTHING and not part.main]
    if lost:
        lines.append(f"The {listed(lost[:SHOWN])} will tell nothing.")
    rule = (
        f"The rule: a part tells nothing if more than half of its quantities have an interval of more than"
        f" {_percent(NOTHING_SHARE)} of their expected size, or are mostly not estimable, and is weak above"
        f" {_percent(WEAK_SHARE)}, or where told less often than in nine of ten cases. A study is worth it if all main parts"
        " are good, and not worth it if more than half of them tell nothing."
    )
    return [*lines, rule, _wanted(plan), *_budget(plan), *_coarse(plan)]


def _why(part: PlannedPart) -> str:
    from veilsum.forecasts import OFTEN

    if part.told < OFTEN:
        return f"told in {_percent(part.told)} of cases"
    return f"known to {_percent(part.typical)} of its size"


def _budget(plan: StudyPlan) -> list[str]:
    from veilsum.plan import MOST_STUDIES, USUAL_BUDGET

    number, delta = plan.affordable, plan.cost.delta
    if number is None:
        return []
    of = f"A budget of epsilon {USUAL_BUDGET:g} at delta {delta:g}"
    if not number:
        return [f"{of} does not bear this study. Each site's budget is its own, and private."]
    shown = (
        f"more than {MOST_STUDIES:,} such studies" if number >= MOST_STUDIES else counted(number, "such study", "such studies")
    )
    return [f"{of} would bear {shown}. Each site's budget is its own, and private."]


def _coarse(plan: StudyPlan) -> list[str]:
    if plan.coarse:
        added = f"truncation to it can add up to {_percent(plan.cost.rounding)} of the noise's standard deviation to a sum"
        return [f"The grid is coarse: {added}, which no interval above contains. A smaller max_records makes it finer."]
    return []


def _wanted(plan: StudyPlan) -> str:
    aim = f"all main quantities to within {_percent(plan.error)} of their expected size"
    if plan.error_epsilon is None:
        return f"No epsilon up to 10,000 would tell {aim}; that takes more records."
    if plan.cost.epsilon is not None and plan.error_epsilon < plan.cost.epsilon * 0.999:
        return f"To tell {aim}, epsilon {rounded_up(plan.error_epsilon)} for the whole study would do."
    return f"To tell {aim} takes epsilon {rounded_up(plan.error_epsilon)} for the whole study."


def figure(value: float, digits: int = 2) -> str:
    """A number with so many significant digits, without an exponent where it can be."""
    if not math.isfinite(value):
        return "?"
    rounded = float(f"{value:.{digits}g}")
    if rounded and not 1e-6 <= abs(rounded) < 1e9:
        return f"{value:.{digits}g}"
    if abs(rounded) >= 10 ** (digits - 1):
        return f"{rounded:,.0f}"
    return f"{rounded:.10f}".rstrip("0").rstrip(".")


def _percent(share: float) -> str:
    if not math.isfinite(share):
        return "no bound"
    percent = 100.0 * share
    return f"{percent:,.0f}%" if percent >= 10 or percent == 0 else f"{percent:.2g}%"


def _epsilon(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "no bound (released without noise)"


def _first_of(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:SHOWN_SITES])
    return f"{shown}, and {len(names) - SHOWN_SITES} more" if len(names) > SHOWN_SITES else shown


def _rounds(number: int) -> str:
    return "1 round" if number == 1 else f"{number:,} rounds at most"


def _duration(seconds: float) -> str:
    if seconds < 10:
        return "a few seconds"
    if seconds < 90:
        return f"about {math.ceil(seconds / 10) * 10} seconds"
    minutes = seconds / 60
    return f"about {math.ceil(minutes)} minutes" if minutes < 120 else f"about {minutes / 60:.0f} hours"


def _say(text: str) -> None:
    """Print a sentence, broken between words where a terminal needs it."""
    if sys.stdout.isatty():
        Console().print(terminal_text(text))
    else:
        print_line(text)
