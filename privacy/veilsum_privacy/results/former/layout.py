"""How a sum lay in ciphertexts up to version 5 of the protocol, and the context that its masks were derived from.

A ciphertext's first word counts the cohort, its last two were tags. Everything follows from study, cohort and task, so a
verifier computes it as every member did.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from veilsum_node.canonical import canonical, digest
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.computation.declared import DeclaredTask
from veilsum_privacy.mechanism.noise_plan import NoisePlan
from veilsum_privacy.securesum.agreed import SummedStudy, SummedTask, TaskShape
from veilsum_privacy.securesum.context import Assignment, context_fields
from veilsum_privacy.securesum.lanes import LanePlan, plan_lanes
from veilsum_privacy.securesum.roster import Roster

_RESERVED_SLOTS = 3  # the count, and two tags
_MAX_SUMMANDS = 1024


@dataclass(frozen=True)
class BfvParameters:
    """One of the two parameter sets.

    Attributes:
        degree: slots of a ciphertext.
        prime_bits: bits of the coefficient primes.
        plain_modulus: t, the modulus of every word.
        weight: what a ciphertext counted for when a study's parameters were chosen.
    """

    degree: int
    prime_bits: tuple[int, int]
    plain_modulus: int
    weight: int

    @property
    def data_slots(self) -> int:
        """Slots of one ciphertext that carry lanes."""
        return self.degree - _RESERVED_SLOTS

    def to_context(self) -> dict[str, object]:
        """What the round's context binds."""
        return {"degree": self.degree, "prime_bits": list(self.prime_bits), "plain_modulus": self.plain_modulus}


BFV_8192 = BfvParameters(8192, (60, 60), 281474976694273, 65800)
BFV_4096 = BfvParameters(4096, (54, 55), 4398046486529, 31250)


@dataclass(frozen=True)
class EncodingPlan(LanePlan):
    """The layout of one round's vector in ciphertexts.

    Attributes:
        parameters: the BFV parameters.
    """

    parameters: BfvParameters

    @property
    def ciphertexts(self) -> int:
        """Number of ciphertexts of one contribution."""
        return -(-self.slots // self.parameters.data_slots)

    def words(self, index: int) -> int:
        """Words of a ciphertext without its tags: the count and the slots that carry values; the last has what is left."""
        width = self.parameters.data_slots
        return 1 + min(width, self.slots - index * width)


def plan_encoding(size: int, bound: int, variance: Fraction, cohort: int, parameters: BfvParameters) -> EncodingPlan:
    """The layout of a sum; arguments as of :func:`~veilsum_privacy.securesum.lanes.plan_lanes`.

    Raises:
        Misuse: out of range, or one lane does not fit a slot.
    """
    plan = plan_lanes(size, bound, variance, cohort, parameters.plain_modulus, _MAX_SUMMANDS)
    return EncodingPlan(**vars(plan), parameters=parameters)


def choose_parameters(sums: list[tuple[int, int, Fraction]], participants: int) -> BfvParameters:
    """The parameter set of a study: the one whose ciphertexts weigh least over its tasks' sums at the full roster.

    Args:
        sums: (size, bound, variance of the whole noise) of each task.
        participants: size of the roster.

    Raises:
        Misuse: some task fits neither set.
    """

    def cost(parameters: BfvParameters) -> int:
        plans = [plan_encoding(size, bound, variance, participants, parameters) for size, bound, variance in sums]
        return sum(plan.ciphertexts for plan in plans) * parameters.weight

    large = cost(BFV_8192)
    try:
        small = cost(BFV_4096)
    except Misuse:
        return BFV_8192
    return BFV_4096 if small < large else BFV_8192


@dataclass(frozen=True)
class FormerStudy(SummedStudy):
    """A study of which a task was removed: its sums are those that were released, whose signatures can still be checked.

    Attributes:
        sizes: of the sums, by label.
    """

    sizes: Mapping[str, int]

    def task(self, label: str) -> SummedTask:
        """One of its tasks, of the shape that its sum and its declaration say.

        Raises:
            HostileInput: there is none of that label, or no sum of it.
        """
        declared = next((each for each in self.study.tasks if each.label == label), None)
        if declared is None or label not in self.sizes:
            raise HostileInput("There is no task with that label, or no sum of it.")
        size, rest = divmod(self.sizes[label], self.study.sites if declared.disclosure == "per-site" else 1)
        if rest:
            raise HostileInput("The sum has not a part for each site.")
        largest = declared.grid * (1 if declared.derived else self.study.data.max_records)
        return SummedTask(self, declared, TaskShape(size, declared.resolution or largest))

    @property
    def tasks(self) -> tuple[SummedTask, ...]:
        """All of them, in the study's order."""
        return tuple(self.task(declared.label) for declared in self.study.tasks)


@dataclass(frozen=True)
class FormerPlan:
    """All that follows from study, cohort size and task.

    Attributes:
        noise: that its members added.
    """

    task: DeclaredTask
    encoding: EncodingPlan
    noise: NoisePlan


def former_plan(task: DeclaredTask, roster: int, cohort: int) -> FormerPlan:
    """The plan of a round of these versions.

    Args:
        task: that was summed.
        roster: how many members the study had.
        cohort: how many of them took part.

    Raises:
        HostileInput: no sum of these versions fits, or a declaration contradicts its task.
    """
    try:
        tasks = task.agreed.tasks
        parameters = choose_parameters([(one.size, one.largest, one.released_variance(roster)) for one in tasks], roster)
        encoding = plan_encoding(task.size, task.largest, task.released_variance(cohort), cohort, parameters)
        return FormerPlan(task, encoding, task.noise(cohort))
    except Misuse as error:
        raise HostileInput(error.message, error.advice) from error


def former_context(plan: FormerPlan, roster: Roster, keys: bytes, assignment: Assignment) -> bytes:
    """Digest c of one attempt (32 bytes); ``keys``: digest of the keys that a member dealt."""
    own = {"v": 1, "keys": keys, "encoding": plan.encoding.to_context(), "bfv": plan.encoding.parameters.to_context()}
    return digest("veilsum/1/context", canonical(context_fields(plan.task, plan.noise, roster, assignment) | own))
