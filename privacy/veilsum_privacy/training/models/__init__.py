"""Models by name: what a study may ask to be trained. A site's own come as entry points of the group ``veilsum.models``.

A name that veilsum has is never taken from an entry point. An architecture is code of an installed package: a study can name
it, but brings none.
"""

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any

from pydantic import ValidationError

from veilsum_node.config import did_you_mean, explain
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.training.models.adapters import Adapters
from veilsum_privacy.training.models.attention import Block
from veilsum_privacy.training.models.base import MAX_VALUES, Architecture, ModelSpec, ReleasedArchitecture
from veilsum_privacy.training.models.discriminants import Discriminant
from veilsum_privacy.training.models.lenet import LeNet5
from veilsum_privacy.training.models.perceptrons import Linear, Mlp
from veilsum_privacy.training.models.resnet import ResNet18
from veilsum_privacy.training.models.trees import Trees
from veilsum_privacy.training.models.vgg import Vgg11

__all__ = ["GROUP", "MODELS", "RELEASED", "Architecture", "ModelSpec", "build_architecture", "check_resolved", "resolve_model"]

GROUP = "veilsum.models"
"""The group of entry points; each names a subclass of :class:`Architecture` by its own name."""

_ALL: tuple[type[Architecture], ...] = (Linear, Mlp, LeNet5, Vgg11, ResNet18, Block, Adapters)

MODELS: Mapping[str, type[Architecture]] = {kind.name: kind for kind in _ALL}
"""Every architecture of veilsum's own that gradients train, by name."""

RELEASED: Mapping[str, type[ReleasedArchitecture]] = {Trees.name: Trees, Discriminant.name: Discriminant}
"""Architectures that methods release and others apply and evaluate, but none trains by gradients."""


def build_architecture(spec: ModelSpec, width: int, classes: int, *, trained: bool = True) -> Architecture:
    """Build the model that a study names, for records of ``width`` features and ``classes`` classes.

    Args:
        trained: whether it must be one that gradients train; otherwise one of :data:`RELEASED` will do.

    Raises:
        HostileInput: no such architecture, options that it does not accept, inputs that do not fit, or too many values.
        Misuse: an installed entry point is not an architecture.
    """
    kind = _kind(spec.name)
    if trained and issubclass(kind, ReleasedArchitecture):
        raise HostileInput(f"The model {spec.name!r} is not trained by gradients.", f"Use the method {kind.method} for it.")
    try:
        options = kind.Options.model_validate(spec.options)
        architecture = kind(options, spec.inputs, width, classes)
    except ValidationError as error:
        raise HostileInput(f"Model {spec.name!r} has invalid options: {' '.join(explain(error, kind.Options))}") from error
    except Misuse as error:
        raise HostileInput(error.message, error.advice) from error
    if architecture.size > MAX_VALUES:
        raise HostileInput(f"Model {spec.name!r} has {architecture.size} values, more than {MAX_VALUES}.")
    return architecture


def resolve_model(spec: ModelSpec) -> ModelSpec:
    """The same model with every option stated, as a signed study carries it.

    Raises:
        HostileInput: as :func:`build_architecture`, for name and options.
    """
    kind = _kind(spec.name)
    try:
        options = kind.Options.model_validate(spec.options).model_dump(mode="json")
    except ValidationError as error:
        raise HostileInput(f"Model {spec.name!r} has invalid options: {' '.join(explain(error, kind.Options))}") from error
    return spec.model_copy(update={"options": options})


def check_resolved(spec: ModelSpec) -> None:
    """Insist that a model leaves nothing to the defaults of the version that reads it.

    Raises:
        HostileInput: an option is not stated, or as :func:`resolve_model`.
    """
    if left := sorted(_open(resolve_model(spec).options, spec.options)):
        raise HostileInput(f"Model {spec.name!r} leaves options open: {', '.join(left)}.", "State every option.")


def _open(resolved: Mapping[str, Any], stated: Mapping[str, Any]) -> Iterator[str]:
    """Options that are not stated, those of a model within another too."""
    for key, value in resolved.items():
        if key not in stated:
            yield key
        elif isinstance(value, Mapping) and isinstance(stated[key], Mapping):
            yield from _open(value, stated[key])


def _kind(name: str) -> type[Architecture]:
    if name in MODELS or name in RELEASED:
        return MODELS[name] if name in MODELS else RELEASED[name]
    installed = {point.name: point for point in entry_points(group=GROUP)}
    if name not in installed:
        raise HostileInput(f"No model is called {name!r}.", did_you_mean(name, {*MODELS, *installed}))
    advice = f"Fix or remove the package that registers it in the group {GROUP!r}."
    try:
        kind = installed[name].load()
    except Exception as error:  # whatever a foreign package raises while it is imported
        raise Misuse(f"The installed model {name!r} cannot be loaded: {type(error).__name__}.", advice) from error
    if not (isinstance(kind, type) and issubclass(kind, Architecture)) or getattr(kind, "name", None) != name:
        raise Misuse(f"The entry point {name!r} does not name an Architecture of that name.", advice)
    return kind
