"""What happens in a federation, drawn from a seed before it starts: its studies, and what strikes it when.

The same seed gives the same plan; how the processes' work falls into it differs from run to run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from veilsum_coordinator.protocol.settings import Waits

COORDINATOR = "coordinator"

PATIENT = Waits(enrol=40, seal=30, contribute=40, consent=40, check=10, grace=20, database=60)
IMPATIENT = Waits(enrol=15, seal=8, contribute=10, consent=3, check=4, grace=2, database=60)

SMALL_BUDGET = 2.5
"""Epsilon of a federation whose later studies have to be refused."""

METHODS: tuple[tuple[str, dict[str, Any], tuple[float | None, ...]], ...] = (
    ("statistics", {}, (None, 0.5, 1.0)),
    ("statistics", {}, (None, 0.5, 1.0)),
    ("fedcgs", {}, (None, 1.0, 2.0)),
    ("pca", {}, (None, 1.0)),
    ("o-fedavg", {}, (None, 1.0)),
    ("fedsgd", {"steps": 4, "gradient_clip": 0.5, "records": 60}, (None, 1.0, 2.0)),
    ("fedsgd", {"steps": 6, "gradient_clip": 0.5, "records": 60, "checkpoint_every": 1}, (None, 1.0, 2.0)),
    ("slot-align", {"alignment": {"reference": "barycenter", "mode": "iterated", "rounds": 3}}, (None, 900.0)),
    ("slot-align", {"alignment": {"reference": "slopes", "mode": "one-shot", "rounds": 3}}, (None, 900.0)),
    ("fedavg", {"rounds": 2, "model": {"name": "linear"}}, (None,)),
)
"""Method, parameters, and the epsilons that it is run with; None is without noise."""

Way = Literal["kill", "stop", "cut"]
Kind = Literal["time", "log", "entry", "attempt", "round", "sent", "start", "result"]


@dataclass(frozen=True)
class Moment:
    """When something strikes.

    Attributes:
        kind: ``time``: so many seconds after the study was submitted. ``log``: after the n-th line of a party's log.
            ``entry``: after the n-th entry of a site's ledger. ``attempt``: the site's n-th attempt came to that state.
            ``round``: the coordinator's n-th round was begun, has its sum or is released. ``sent``: the site has sent so many
            bytes. ``start``: so long after the party was started anew. ``result``: the study's folder of results is there.
        party: whose.
        number: which one, or how many bytes.
        seconds: of ``time`` and ``start``.
        state: of ``attempt`` and ``round``.
    """

    kind: Kind
    party: str = COORDINATOR
    number: int = 1
    seconds: float = 0.0
    state: str = ""

    def __str__(self) -> str:
        text = {
            "time": f"{self.seconds:.2f} s",
            "start": f"{self.party} started {self.seconds:.2f} s ago",
            "log": f"line {self.number} of {self.party}'s log",
            "entry": f"entry {self.number} of {self.party}'s ledger",
            "attempt": f"{self.party}'s attempt {self.number} is {self.state}",
            "round": f"{self.state} of round {self.number}",
            "sent": f"{self.number} bytes of {self.party}",
            "result": "the result's folder",
        }
        return text[self.kind]


@dataclass(frozen=True)
class Strike:
    """What strikes whom.

    Attributes:
        victims: parties, struck at once.
        down: seconds until each is started again, in the victims' order.
        way: ``kill``: SIGKILL. ``stop``: as an operator stops a service. ``cut``: the victims' connections are cut once.
    """

    moment: Moment
    victims: tuple[str, ...]
    down: tuple[float, ...]
    way: Way = "kill"

    def __str__(self) -> str:
        return f"{self.way} {', '.join(self.victims)} at {self.moment}, down {'/'.join(f'{item:.1f}' for item in self.down)} s"


@dataclass(frozen=True)
class StudyPlan:
    """One study.

    Attributes:
        epsilon: None without noise.
        beside: whether it is submitted while the one before it runs.
        abort: seconds after its submission at which the analyst aborts it; None for not.
        strikes: that are aimed at it.
    """

    seed: str
    method: str
    parameters: dict[str, Any]
    epsilon: float | None
    min_cohort: int
    cohort_difference: Literal["strict", "allowed"]
    beside: bool
    abort: float | None
    strikes: tuple[Strike, ...]


@dataclass(frozen=True)
class FederationPlan:
    """One federation.

    Attributes:
        names: of its sites.
        budget: epsilon of every site; None for unlimited.
        strikes: while it starts for the first time.
    """

    seed: str
    names: tuple[str, ...]
    waits: Waits
    budget: float | None
    studies: tuple[StudyPlan, ...]
    strikes: tuple[Strike, ...] = field(default=())


def draw_federation(seed: str, studies: int, sites: int, *, small_budget: bool = False) -> FederationPlan:
    """A federation's plan; ``small_budget``: studies with noise only, and not all of them can be paid."""
    rng = random.Random(f"federation {seed}")
    names = tuple("abcdefgh"[:sites])
    waits = PATIENT if rng.random() < 0.7 else IMPATIENT
    longest = 2.0 if waits is PATIENT else 5.0
    drawn = tuple(_study(f"{seed}/{number}", number, names, longest, small_budget) for number in range(studies))
    starting = tuple(_starting(rng, names) for _ in range(rng.randint(1, 3)))
    return FederationPlan(seed, names, waits, SMALL_BUDGET if small_budget else None, drawn, starting)


def _study(seed: str, number: int, names: Sequence[str], longest: float, small_budget: bool) -> StudyPlan:
    rng = random.Random(f"study {seed}")
    method, parameters, epsilons = rng.choice(METHODS)
    while small_budget and max(item or 0.0 for item in epsilons) not in (1.0, 2.0):
        method, parameters, epsilons = rng.choice(METHODS)
    epsilon = rng.choice([item for item in epsilons if item is not None or not small_budget])
    kept = method == "slot-align"
    strict = epsilon is None or kept or rng.random() < 0.4
    strikes = tuple(_strike(rng, names, longest, soon=place == 0) for place in range(rng.choice((1, 2, 2, 3))))
    return StudyPlan(
        seed,
        method,
        parameters,
        epsilon,
        min_cohort=len(names) if rng.random() < 0.4 else len(names) - 1,
        cohort_difference="strict" if strict else "allowed",
        beside=number > 0 and rng.random() < 0.15,
        abort=rng.uniform(0.2, 3.0) if rng.random() < 0.05 else None,
        strikes=strikes,
    )


def _victims(rng: random.Random, names: Sequence[str]) -> tuple[str, ...]:
    share = rng.random()
    if share < 0.35:
        return (COORDINATOR,)
    if share < 0.7:
        return (rng.choice(names),)
    if share < 0.9:
        return tuple(rng.sample([COORDINATOR, *names], 2))
    return (COORDINATOR, *names)


def _strike(rng: random.Random, names: Sequence[str], longest: float, *, soon: bool) -> Strike:
    victims = _victims(rng, names)
    way: Way = rng.choices(("kill", "stop", "cut"), (0.85, 0.1, 0.05))[0]
    if way == "cut":
        victims = (rng.choice(names),)
    down = tuple(rng.choice((0.0, rng.uniform(0, longest))) for _ in victims)
    return Strike(_moment(rng, names, victims, soon=soon), victims, down, way)


def _moment(rng: random.Random, names: Sequence[str], victims: Sequence[str], *, soon: bool) -> Moment:
    """A moment; ``soon``: one that every study comes to, if nothing else strikes it."""
    site = rng.choice([name for name in victims if name != COORDINATOR] or list(names))
    kinds: list[Kind] = ["time", "log", "entry", "attempt", "attempt", "round", "round", "sent"]
    kind = rng.choice(kinds if soon else [*kinds, "time", "start", "result"])
    nth = 1 if soon else rng.randint(1, 4)
    if kind == "time":
        return Moment("time", seconds=rng.uniform(0, 0.9 if soon else 4))
    if kind == "log":
        return Moment("log", rng.choice(list(victims)), number=rng.randint(1, 4 if soon else 12))
    if kind == "entry":
        return Moment("entry", site, number=rng.randint(1, 3 if soon else 9))
    if kind == "attempt":
        return Moment("attempt", site, nth, state=rng.choice(("reserved", "payload", "consented", "released")))
    if kind == "round":
        return Moment("round", number=nth, state=rng.choice(("begin", "sum", "release")))
    if kind == "sent":
        return Moment("sent", site, number=int(10 ** rng.uniform(3.2, 4.9 if soon else 5.5)))
    if kind == "start":
        return Moment("start", victims[0], seconds=rng.uniform(0, 4))
    return Moment("result")


def _starting(rng: random.Random, names: Sequence[str]) -> Strike:
    victim = rng.choice((COORDINATOR, *names))
    return Strike(Moment("start", victim, seconds=rng.uniform(0, 5)), (victim,), (0.0,))
