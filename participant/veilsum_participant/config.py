"""``participant.toml``: where a site's identity, data and ledger lie, and what it agrees to.

The policy is the site's own word: nothing that a coordinator or a study says lowers it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictFloat, StrictInt, StrictStr, field_validator

from veilsum_privacy.config import load_toml
from veilsum_privacy.schema import ColumnName, Frozen, Name
from veilsum_privacy.study import Disclosure, Hex32, Unit

Differencing = Literal["strict", "allowed"]


def _address(value: str) -> str:
    host, _, port = value.rpartition(":")
    digits = port.isascii() and port.isdigit() and len(port) <= 5
    if not host or ":" in host or any(character.isspace() for character in host) or not digits or not 0 < int(port) < 65536:
        raise ValueError("must be host:port, for example coordinator.example:8461")
    return value


def _epsilon(value: object) -> object:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else 0
    if value != "unlimited" and not 0 < number <= 1000:
        raise ValueError('must be a positive number up to 1000, or "unlimited"')
    return value


class DatasetConfig(Frozen):
    """A dataset that the site offers.

    Attributes:
        path: the file (CSV, Parquet or npz), relative to the configuration file.
        population: whose records they are; all datasets of one population share one budget. Defaults to the dataset's name.
        subject: the column that tells which person a record is of; it never leaves the site. Studies with the unit "subject"
            need it.
    """

    path: Path
    population: Name | None = None
    subject: ColumnName | None = None


class EncoderConfig(Frozen):
    """A frozen encoder that studies may name by its hash; see :mod:`veilsum_participant.data.encoders`.

    Attributes:
        path: a TorchScript file or a program of torch.export, relative to the configuration file.
    """

    path: Path


class BudgetConfig(Frozen):
    """A population's first budget; later changes are entries of the ledger.

    ``epsilon = "unlimited"`` demands no guarantee; it is the only budget that admits releases without noise.
    """

    epsilon: Annotated[float | Literal["unlimited"], BeforeValidator(_epsilon)]
    delta: StrictFloat = Field(gt=0, lt=0.1)


class Policy(Frozen):
    """What the site agrees to. Defaults are the cautious ones.

    Attributes:
        methods: methods that the site takes part in.
        tasks: what may be computed on its records; a method's name alone binds nothing.
        analysts: certified names whose studies it accepts; "*" accepts every analyst of the federation.
        trusted: pinned peers, name -> key fingerprint; only pinned peers' noise counts.
        min_cohort: smallest cohort of any sum, this site included.
        min_trusted: how many of a cohort must be trusted, this site included.
        noise: kinds of noise it accepts; ``none`` gives exact sums without any privacy guarantee.
        disclosures: kinds of disclosure it accepts.
        cohort_difference: whether a study's cohorts may differ (``allowed``), or must be one and the same (``strict``). Two
            cohorts that differ in one site show that site's noised numbers by subtraction; its own charge covers that.
        units: units of privacy it accepts: one record, or all records of one subject.
        max_epsilon: largest epsilon of one study.
        max_attempts: how often one round may be tried; each try is two entries of the ledger.
        max_lost: charges without a release after which it leaves a study.
        study_days: how long a study may stay open.
        attempt_hours: how long a reservation stays open at most, whatever deadline the coordinator names.
        approval: ``policy`` enrols in every study that the policy accepts, ``manual`` waits for the operator's word on each.
        share_metrics: whether the site reports metrics of its own (counts, losses, times) to the coordinator. Nothing does so
            yet, so only ``false`` is accepted; what comes later asks this key first.
    """

    methods: tuple[Name, ...] = (
        "statistics",
        "pca",
        "slot-align",
        "o-fedavg",
        "fedcgs",
        "fedpft",
        "fedsgd",
        "fedavg",
        "hfedatm",
        "ggeur",
        "federated-evaluation",
    )
    tasks: tuple[Name, ...] = (
        "statistics",
        "gaussian-moments",
        "class-moments",
        "prototypes",
        "class-mixtures",
        "local-head",
        "local-training",
        "gradient",
        "grams",
        "feature-means",
        "power-moments",
        "evaluation",
        "barycenter-step",
        "two-way-step",
        "aligned-moments",
        "within-moments",
    )
    analysts: tuple[StrictStr, ...] = ()
    trusted: dict[Name, Hex32] = Field(default_factory=dict)
    min_cohort: StrictInt = Field(default=3, ge=2, le=1024)
    min_trusted: StrictInt = Field(default=1, ge=1, le=1024)
    noise: tuple[Literal["distributed", "local", "none"], ...] = ("distributed", "local")
    disclosures: tuple[Disclosure, ...] = ("joint",)
    cohort_difference: tuple[Differencing, ...] = ("strict", "allowed")
    units: tuple[Unit, ...] = ("record", "subject")
    max_epsilon: StrictFloat = Field(default=1.0, gt=0, le=1000)
    max_attempts: StrictInt = Field(default=16, ge=1, le=1000)
    max_lost: StrictInt = Field(default=2, ge=1, le=100)
    study_days: StrictInt = Field(default=366, ge=1, le=3660)
    attempt_hours: StrictInt = Field(default=24, ge=1, le=24 * 30)
    approval: Literal["policy", "manual"] = "policy"
    share_metrics: StrictBool = False

    @field_validator("share_metrics")
    @classmethod
    def _nothing_shares_yet(cls, value: bool) -> bool:
        if value:
            raise ValueError("nothing reports metrics yet, so this cannot be granted; leave it out or set it to false")
        return value


class ParticipantConfig(Frozen):
    """A participant's configuration file.

    Attributes:
        coordinator: host:port to dial.
        identity: directory of key, certificate and authority.
        state: file of protocol state and ledger.
        log: file; standard error without it.
        datasets: what the site offers, by the names that studies use.
        encoders: files that turn its columns into features; a study finds one by its hash, the name is the site's own.
        budgets: first budgets by population.
        policy: what the site agrees to.
    """

    coordinator: Annotated[str, AfterValidator(_address)]
    identity: Path = Path("identity")
    state: Path = Path("participant.db")
    log: Path | None = None
    datasets: dict[Name, DatasetConfig] = Field(min_length=1)
    encoders: dict[Name, EncoderConfig] = Field(default_factory=dict)
    budgets: dict[Name, BudgetConfig] = Field(default_factory=dict)
    policy: Policy = Policy()

    def population(self, dataset: str) -> str:
        """The population of an offered dataset."""
        return self.datasets[dataset].population or dataset


def load_participant_config(path: Path) -> ParticipantConfig:
    """Load ``participant.toml``; relative paths are taken from its directory.

    Raises:
        ConfigurationError: missing, malformed, or a key is unknown or out of range.
    """
    config = load_toml(path, ParticipantConfig)
    base = path.resolve().parent
    datasets = {name: dataset.model_copy(update={"path": base / dataset.path}) for name, dataset in config.datasets.items()}
    encoders = {name: EncoderConfig(path=base / encoder.path) for name, encoder in config.encoders.items()}
    return config.model_copy(
        update={
            "identity": base / config.identity,
            "state": base / config.state,
            "log": base / config.log if config.log is not None else None,
            "datasets": datasets,
            "encoders": encoders,
        }
    )
