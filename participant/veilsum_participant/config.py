"""``participant.toml``: where a site's identity, data and ledger lie, and what it agrees to.

The policy is the site's own word: nothing that a coordinator or a study says lowers it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from veilsum_privacy.config import load_toml
from veilsum_privacy.schema import Frozen, Name
from veilsum_privacy.study import Disclosure, Hex32


class DatasetConfig(Frozen):
    """A dataset that the site offers.

    Attributes:
        path: the file (CSV, Parquet or npz), relative to the configuration file.
        population: whose records they are; all datasets of one population share one budget. Defaults to the dataset's name.
    """

    path: Path
    population: Name | None = None


class BudgetConfig(Frozen):
    """A population's first budget; later changes are entries of the ledger.

    ``epsilon = "unlimited"`` demands no guarantee; it is the only budget that admits releases without noise.
    """

    epsilon: Annotated[float, Field(gt=0, le=1000)] | Literal["unlimited"]
    delta: float = Field(gt=0, lt=0.1)


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
        max_epsilon: largest epsilon of one study.
        max_lost: charges without a release after which it leaves a study.
        study_days: how long a study may stay open.
        attempt_hours: how long a reservation stays open at most, whatever deadline the coordinator names.
    """

    methods: tuple[Name, ...] = ("statistics", "fedcgs")
    tasks: tuple[Name, ...] = ("statistics", "class-moments")
    analysts: tuple[str, ...] = ()
    trusted: dict[Name, Hex32] = Field(default_factory=dict)
    min_cohort: int = Field(default=3, ge=2, le=1024)
    min_trusted: int = Field(default=1, ge=1, le=1024)
    noise: tuple[Literal["distributed", "local", "none"], ...] = ("distributed", "local")
    disclosures: tuple[Disclosure, ...] = ("joint",)
    max_epsilon: float = Field(default=1.0, gt=0, le=1000)
    max_lost: int = Field(default=2, ge=1, le=100)
    study_days: int = Field(default=366, ge=1, le=3660)
    attempt_hours: int = Field(default=24, ge=1, le=24 * 30)


class ParticipantConfig(Frozen):
    """A participant's configuration file."""

    coordinator: str = Field(description="host:port of the coordinator", pattern=r"^[^\s:]+:\d{1,5}$")
    identity: Path = Path("identity")
    state: Path = Path("participant.db")
    log: Path | None = None
    datasets: dict[Name, DatasetConfig] = Field(min_length=1)
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
    return config.model_copy(
        update={
            "identity": base / config.identity,
            "state": base / config.state,
            "log": base / config.log if config.log is not None else None,
            "datasets": datasets,
        }
    )
