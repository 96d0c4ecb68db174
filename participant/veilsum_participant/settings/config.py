"""``participant.toml``: where a site's identity, data and ledger lie, and what it agrees to.

The policy is the site's own word: nothing that a coordinator or a study says lowers it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    StringConstraints,
    field_validator,
    model_validator,
)

from veilsum_node.addresses import address_to_dial
from veilsum_node.fields import Frozen, Hex32, Name
from veilsum_node.telemetry.endpoint_settings import MetricsSettings
from veilsum_node.telemetry.log_writing import LogSettings
from veilsum_node.transport.route import Route
from veilsum_node.transport.route_settings import RouteSettings
from veilsum_participant.settings.dataset_config import DatasetConfig, EncoderConfig
from veilsum_privacy.accounting.accountant import SLACK_SHARE
from veilsum_privacy.study.known_tasks import TASK_NAMES
from veilsum_privacy.study.study import Disclosure, Statement, Unit

if TYPE_CHECKING:
    from veilsum_node.overrides import Loaded

Differencing = Literal["strict", "allowed"]

DeviceName = Annotated[str, StringConstraints(pattern=r"^(auto|cpu|cuda(:[0-9]{1,2})?)$")]
"""``cpu``; ``cuda`` or ``cuda:N``, a GPU by its number; or ``auto``, the first GPU that torch finds, else the CPU."""

ShareGroup = Literal["software", "budget", "ledger", "timings", "certificate"]
"""A group of a site's own metrics that it may share with the coordinator."""


def _epsilon(value: object) -> object:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else 0
    if value != "unlimited" and not 0 < number <= 1000:
        raise ValueError('must be a positive number up to 1000, or "unlimited"')
    return value


class BudgetConfig(Frozen):
    """A population's first budget; later changes are entries of the ledger.

    ``epsilon = "unlimited"`` demands no guarantee; it is the only budget that admits releases without noise.
    """

    epsilon: Annotated[float | Literal["unlimited"], BeforeValidator(_epsilon)]
    delta: StrictFloat = Field(gt=0, lt=0.1)


NEEDED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "statistics": (("tables",),),
    "regression": (("tables",),),
    "pca": (("gaussian-moments",),),
    "slot-align": (("class-moments", "gaussian-moments"),),
    "o-fedavg": (("class-moments", "prototypes"),),
    "fedcgs": (("class-moments", "aligned-moments", "prototypes"),),
    "fedpft": (("class-mixtures", "class-moments", "prototypes"),),
    "gbdt": (("tree-gradients",),),
    "fedsgd": (("gradient",),),
    "fedavg": (("local-training",),),
    "hfedatm": (("grams",), ("local-training",)),
    "ggeur": (("class-moments", "prototypes"),),
    "federated-evaluation": (("model-tables", "tables"),),
}
"""Tasks without which no study of a method runs: one of each group. A participant does not know the coordinator's registry,
which the tests hold this against."""

METHODS = tuple(NEEDED)
"""Every method of this version."""


class Policy(Frozen):
    """What the site agrees to. By default every method and task of this version, with noise, and nobody's studies.

    Attributes:
        methods: methods that the site takes part in.
        tasks: what may be computed on its records; a method's name alone binds nothing.
        require: what a study has to state in words, of purpose, reference, legal_basis and contact; none by default.
        analysts: certified names whose studies it accepts; "*" accepts every analyst of the federation.
        trusted: pinned peers, name -> key fingerprint; only pinned peers' noise counts.
        directory: instead of ``trusted``, the authority's file of all members' keys, once the operator has confirmed it
            (:mod:`veilsum_participant.settings.directory`); its participants become ``trusted``.
        not_trusted: participants of the directory that are not pinned all the same.
        min_cohort: smallest cohort of any sum, this site included.
        min_trusted: how many of a cohort must be trusted, this site included.
        noise: kinds of noise it accepts; ``none`` gives exact sums without any privacy guarantee.
        disclosures: kinds of disclosure it accepts.
        cohort_difference: whether a study's cohorts may differ (``allowed``), or must be one and the same (``strict``, as all
            studies without noise are). Two cohorts that differ in one site show that site's noised numbers by subtraction;
            its own charge covers that. A strict study's cohort is also held to those of all earlier strict ones of the
            population: it is the same, or differs in at least ``min_cohort`` members
            (:mod:`veilsum_participant.protocol.cohorts`).
        masks: between whom masks may be shared: ``complete``, every two members; ``neighbours``, in a study of more than 65
            sites each with at least 64 others (:mod:`veilsum_privacy.securesum.graph`). Without the latter the site takes part
            in complete studies only.
        units: units of privacy it accepts: one record, or all records of one subject.
        max_epsilon: largest epsilon of one study.
        max_delta: largest delta that a study may state. At 1 / n and above, a guarantee for n records bears that one of
            them is published.
        max_slack: largest slack of one study, as a share of delta: the probability with which its sampled steps may be taken
            to reveal a record. A budget by the rule ``gaussian`` bears a tenth of delta in all.
        smallest_cell: fewest records of a group whose figures a study of the method "statistics" may print, by the noised
            count; 0 makes no rule. A custom of many institutions: what guards records is the noise.
        max_attempts: how often one round may be tried; each try is two entries of the ledger.
        max_lost: charges without a release after which it leaves a study.
        study_days: how long a study may stay open.
        attempt_hours: how long a reservation stays open at most, whatever deadline the coordinator names.
        max_budget_answers: how often a day an analyst is told whether a population's past bears a study, by being let in or
            refused; answers to studies that paid all that they declared do not count
            (:mod:`veilsum_participant.protocol.answers`).
        four_eyes_above: with ``approval = "manual"``, epsilon of one study above which two people have to approve it, each by
            their own name; a study without noise is above every epsilon. None: one is enough.
        four_eyes_budget: whether two people have to set a budget, each by their own name; one is enough to lower it.
        approval: ``policy`` enrols in every study that the policy accepts, ``manual`` waits for the operator's word on each.
        share_metrics: which of its own metrics the site reports to the coordinator, by groups; none by default. What is not
            named never leaves. ``false``, which earlier versions wrote, is the same as none.
    """

    methods: tuple[Name, ...] = METHODS
    tasks: tuple[Name, ...] = Field(default=TASK_NAMES)
    require: tuple[Statement, ...] = ()
    analysts: tuple[StrictStr, ...] = ()
    trusted: dict[Name, Hex32] = Field(default_factory=dict)
    directory: Path | None = None
    not_trusted: tuple[Name, ...] = ()
    min_cohort: StrictInt = Field(default=3, ge=2, le=1024)
    min_trusted: StrictInt = Field(default=1, ge=1, le=1024)
    noise: tuple[Literal["distributed", "local", "none"], ...] = ("distributed", "local")
    disclosures: tuple[Disclosure, ...] = ("joint",)
    cohort_difference: tuple[Differencing, ...] = ("strict", "allowed")
    masks: tuple[Literal["complete", "neighbours"], ...] = ("complete", "neighbours")
    units: tuple[Unit, ...] = ("record", "subject")
    max_epsilon: StrictFloat = Field(default=1.0, gt=0, le=1000)
    max_delta: StrictFloat = Field(default=1e-3, gt=0, lt=0.5)
    max_slack: StrictFloat = Field(default=0.02, ge=0, le=SLACK_SHARE)
    smallest_cell: StrictInt = Field(default=0, ge=0, le=1_000_000)
    max_attempts: StrictInt = Field(default=16, ge=1, le=1000)
    max_lost: StrictInt = Field(default=2, ge=1, le=100)
    study_days: StrictInt = Field(default=366, ge=1, le=3660)
    attempt_hours: StrictInt = Field(default=24, ge=1, le=24 * 30)
    max_budget_answers: StrictInt = Field(default=8, ge=1, le=10_000)
    approval: Literal["policy", "manual"] = "policy"
    four_eyes_above: StrictFloat | None = Field(default=None, ge=0, le=1000)
    four_eyes_budget: StrictBool = False
    share_metrics: tuple[ShareGroup, ...] = ()

    @field_validator("share_metrics", mode="before")
    @classmethod
    def _no_blank_grant(cls, value: object) -> object:
        if value is True:
            raise ValueError(f"name what is shared, of {', '.join(get_args(ShareGroup))}")
        return () if value is False else value

    @model_validator(mode="after")
    def _one_source_of_pins(self) -> Self:
        if self.directory is not None and self.trusted:
            raise ValueError("needs trusted or directory, one of them")
        if self.directory is None and self.not_trusted:
            raise ValueError("not_trusted is for members of a directory; without one, leave them out of trusted")
        return self

    @model_validator(mode="after")
    def _eyes_that_look(self) -> Self:
        if self.four_eyes_above is not None and self.approval != "manual":
            raise ValueError('four_eyes_above needs approval = "manual"; else nobody is asked')
        return self


class HooksConfig(Frozen):
    """The table ``[hooks]``: commands of the site's own.

    Attributes:
        waiting: program, by its whole path, and its arguments; run when studies began to wait for the operator's word
            (:mod:`veilsum_participant.session.hooks`). Empty for none.
    """

    waiting: tuple[StrictStr, ...] = ()

    @field_validator("waiting")
    @classmethod
    def _whole_path(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value and not Path(value[0]).is_absolute():
            raise ValueError('begins with the whole path of a program, as in ["/usr/bin/mail", "officer@example.org"]')
        if any("\0" in item for item in value):
            raise ValueError("holds a character that no argument can")
        return value


class RetentionConfig(Frozen):
    """The table ``[retention]``: what the site erases by itself. The ledger stays.

    Attributes:
        studies: days after a study has expired when its signed text goes, with roster and kept vectors; None to keep all.
        kept_vectors: the same for the noised vectors that an alignment kept, which `apply` then does without.
    """

    studies: StrictInt | None = Field(default=None, ge=0, le=36500)
    kept_vectors: StrictInt | None = Field(default=None, ge=0, le=36500)


class ParticipantConfig(RouteSettings):
    """A participant's configuration file, with the keys of :class:`RouteSettings` beside these.

    Attributes:
        coordinator: host:port to dial.
        identity: directory of key, certificate and authority.
        state: file of protocol state and ledger.
        log: where the log goes and in which form.
        metrics: where metrics, health and readiness are served; nowhere without it.
        verify_hours: how often the running participant verifies its whole ledger, beside every start.
        datasets: what the site offers, by the names that studies use.
        encoders: files that turn its columns into features; a study finds one by its hash, the name is the site's own.
        device: where networks and encoders are computed, ``cpu``, ``cuda:N`` or ``auto``
            (:mod:`veilsum_privacy.training.device`).
        budgets: first budgets by population.
        isolation: ``processes`` keeps the network, the keys and the records in processes of their own, each confined to what
            it is for (:mod:`veilsum_participant.settings.roles`); ``none`` runs all in one, which no kernel confines;
            ``auto`` is the former where it can be had (:func:`~veilsum_participant.settings.roles.unconfined`).
        hooks: commands of the site's own that are told what happens.
        retention: what the site erases by itself, and when.
        policy: what the site agrees to.
    """

    coordinator: Annotated[str, AfterValidator(address_to_dial)]
    identity: Path = Path("identity")
    state: Path = Path("participant.db")
    log: LogSettings = LogSettings()
    metrics: MetricsSettings | None = None
    verify_hours: StrictInt = Field(default=24, ge=1, le=24 * 30)
    datasets: dict[Name, DatasetConfig] = Field(min_length=1)
    encoders: dict[Name, EncoderConfig] = Field(default_factory=dict)
    device: DeviceName = "cpu"
    budgets: dict[Name, BudgetConfig] = Field(default_factory=dict)
    isolation: Literal["auto", "processes", "none"] = "auto"
    hooks: HooksConfig = HooksConfig()
    retention: RetentionConfig = RetentionConfig()
    policy: Policy = Policy()

    @property
    def route(self) -> Route:
        """The way to the coordinator; reads the files that it needs.

        Raises:
            ConfigurationError: one of them, or the environment's proxy, is wrong.
        """
        return self.route_to(self.coordinator)

    def population(self, dataset: str) -> str:
        """The population of an offered dataset."""
        return self.datasets[dataset].population or dataset


def read_participant_settings(path: Path) -> "Loaded[ParticipantConfig]":
    """Read ``participant.toml`` and the environment, paths as they are written, with where each value came from.

    Raises:
        ConfigurationError: missing, malformed, or a key or variable is unknown or out of range.
    """
    from veilsum_node.overrides import load_settings  # a guard is given what its launcher has read

    return load_settings(path, ParticipantConfig)


def load_participant_config(path: Path) -> ParticipantConfig:
    """Load ``participant.toml`` and what the environment overrides; relative paths are taken from the file's directory.

    Raises:
        ConfigurationError: missing, malformed, or a key or variable is unknown or out of range.
    """
    from veilsum_node.config import located

    return located(read_participant_settings(path).config, path)
