"""What a launcher tells its guard of the configuration that it has read: as JSON, and what is unusual, in words."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from veilsum_node.config import did_you_mean
from veilsum_node.phrases import listed
from veilsum_node.transport.route import Proxy, Route, unused_proxy_variables
from veilsum_participant.boundary.front import Dial
from veilsum_participant.settings.config import NEEDED, ParticipantConfig, Policy
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.settings.told import plain
from veilsum_privacy.study.known_tasks import FORMER, TASK_NAMES

LOG = logging.getLogger("veilsum.participant")

DERIVED = ("csv", "derived", "in_batches", "named_in_records", "several_rows")
"""Properties of a dataset that a guard asks for."""


def stated(value: Any) -> list[Any]:
    """A value of a configuration as JSON that says of what kind it is; secrets as they are.

    Raises:
        ConfigurationError: a path is not UTF-8.
    """
    match value:
        case BaseModel():
            fields = {name: stated(getattr(value, name)) for name in type(value).model_fields}
            derived = DERIVED if isinstance(value, DatasetConfig) else ()
            return ["table", fields, {name: stated(getattr(value, name)) for name in derived}]
        case dict():
            return ["names", {name: stated(item) for name, item in value.items()}]
        case list() | tuple():
            return ["list", [stated(item) for item in value]]
        case Path():
            return ["path", plain(value)]
        case SecretStr():
            return ["value", value.get_secret_value()]
        case _:
            return ["value", value]


def dialling(way: Route) -> Dial:
    """A way as a front is asked to go it, as yet without a key."""
    proxy = way.proxy or Proxy("")
    return Dial(way.address, proxy.address, proxy.user, proxy.password, way.roots)


def say_start(config: ParticipantConfig, variables: Sequence[str]) -> None:
    """Log what a participant begins with.

    Args:
        variables: of the environment that set a key of the configuration.

    Raises:
        ConfigurationError: the way to the coordinator is not in order.
    """
    way = config.route
    if config.proxy is None and (ignored := unused_proxy_variables()):
        LOG.info("%s is set but not used: participant.toml names no proxy", ", ".join(ignored))
    if variables:
        LOG.info("the environment sets %s", ", ".join(variables))
    LOG.info("connecting to the coordinator at %s", way)
    for caution in cautions(config):
        LOG.warning("%s", caution)


def cautions(config: ParticipantConfig) -> list[str]:
    """What is said at each start of a configuration that is in order, and may not be what was meant."""
    unstated = [name for name, offered in config.datasets.items() if not offered.columns and offered.named_in_records]
    return [
        *(
            f"dataset {name}: its columns are not stated, so every study is refused: datasets.{name}.columns"
            for name in unstated
        ),
        *(f"policy.tasks: the task {name}: {told}. {advice}" for name, told, advice in former_tasks(config.policy)),
        *(f"policy.methods: {name}: {told}. {advice}" for name, told, advice in lacking_tasks(config.policy)),
        *(f"dataset {name}: {told}. {advice}" for name, told, advice in unbounded_datasets(config)),
    ]


def unbounded_datasets(config: ParticipantConfig) -> Iterator[tuple[str, str, str]]:
    """Datasets of which exact sums may be asked for and that state no size: the name, what follows, and what to do."""
    if "none" in config.policy.noise:
        told = "policy.noise accepts exact sums, and every study of them is refused until the dataset's size is stated"
        for name, offered in config.datasets.items():
            if not offered.most_records:
                yield name, told, f"State datasets.{name}.most_records, a round number with room to grow."


def former_tasks(policy: Policy) -> Iterator[tuple[str, str, str]]:
    """Tasks that the policy lists and that are not there, or not any more: the name, what became of it, and the advice."""
    for name in policy.tasks:
        if name not in (*TASK_NAMES, *FORMER):
            yield name, "this version has no such task", did_you_mean(name, TASK_NAMES)
        elif name in FORMER:
            told = f"removed after version {FORMER[name].version}; studies ask for {FORMER[name].now!r} in its place"
            now = "" if FORMER[name].now in policy.tasks else f", and list {FORMER[name].now!r} if the site agrees to it"
            yield name, told, f"Take {name!r} out of policy.tasks{now}."


def lacking_tasks(policy: Policy) -> Iterator[tuple[str, str, str]]:
    """Methods that the policy allows and of which no study runs, for want of it or a task: the name, why, and what to do."""
    for name in policy.methods:
        if name not in NEEDED:
            yield name, "this version has no such method", did_you_mean(name, NEEDED)
        for group in NEEDED.get(name, ()):
            if not set(group) & set(policy.tasks):
                wanted = listed([repr(task) for task in group], last="or")
                told = f"no study of it can run here: policy.tasks does not list {wanted}"
                advice = f"List {wanted} in policy.tasks if the site agrees to it, or take {name!r} out of policy.methods."
                yield name, told, f"{advice} Without the key tasks every task of the installed version is allowed."
