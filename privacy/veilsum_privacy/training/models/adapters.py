"""Adapters of low rank on a frozen network, "adapters" (LoRA, Hu et al. 2022): W x + (alpha / rank) B A x.

W is frozen: it lies in a file of safetensors at every site, which the study names by its hash, and is never sent. A and B of
the named Linear layers are trained, and the head. The names of their arrays are those of the package peft.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import Field, StringConstraints, model_validator

from veilsum_aggregation.arrays import Floats
from veilsum_node.config import did_you_mean
from veilsum_node.errors import HostileInput, Misuse, told_as
from veilsum_node.fields import Frozen, Name, Real
from veilsum_privacy.training.models.base import Architecture, ModelSpec, Shapes

if TYPE_CHECKING:
    from veilsum_privacy.training.models.networks import Network

A, B = "lora_A.weight", "lora_B.weight"
"""Ends of the names of an adapter's arrays: (rank, inputs) and (outputs, rank)."""

PEFT = "base_model.model."
"""What peft puts before the name of an array."""

_LayerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w-]*(\.[\w-]+)*$", max_length=256)]


class AdaptersOptions(Frozen):
    """Options of :class:`Adapters`.

    Attributes:
        of: the model whose layers are adapted, by its name; it takes the same inputs.
        weights: SHA-256 of the file of its frozen values, 64 hexadecimal digits.
        layers: Linear layers that are adapted.
        rank: of each adapter.
        alpha: an adapter's product counts alpha / rank times.
        names: what the file calls modules of the model: the longest name that begins an array's is put in its place.
    """

    of: Name = "block"
    options: dict[str, Any] = Field(default_factory=dict)
    weights: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    layers: tuple[_LayerName, ...] = Field(min_length=1, max_length=1024)
    rank: int = Field(default=4, ge=1, le=1024)
    alpha: Real = Field(default=8.0, gt=0, le=1e6)
    names: dict[_LayerName, _LayerName] = Field(default_factory=dict, max_length=1024)

    @model_validator(mode="before")
    @classmethod
    def _stated(cls, values: Any) -> Any:
        """The adapted model's own options all stated, as a signed study holds them."""
        if not isinstance(values, dict) or not isinstance(values.get("options", {}), dict):
            return values
        from veilsum_privacy.training.models import resolve_model

        name = values.get("of", "block")
        if name == Adapters.name:
            raise ValueError("of: adapters are of another model")
        try:
            spec = resolve_model(ModelSpec(name=name, options=values.get("options", {})))
        except (HostileInput, Misuse) as error:
            raise ValueError(f"of: {error.message}") from error
        return {**values, "options": spec.options}


class Adapters(Architecture):
    """A frozen model with trained products of low rank beside some of its Linear layers, and a trained head.

    A begins as peft draws it, in the variance 1 / (3 inputs), B with zeros: the first model is the frozen one.
    """

    name = "adapters"
    Options: ClassVar[type[Frozen]] = AdaptersOptions
    options: AdaptersOptions

    def __init__(self, options: Frozen, inputs: tuple[int, ...] | None, width: int, classes: int) -> None:
        super().__init__(options, inputs, width, classes)
        from veilsum_privacy.training.models import build_architecture

        with told_as(Misuse, HostileInput):
            spec = ModelSpec(name=self.options.of, inputs=inputs, options=self.options.options)
            self.base = build_architecture(spec, width, classes)
        self.precision = self.base.precision  # type: ignore[misc]
        known = self.base.shapes()
        linear = {
            name.removesuffix(".weight"): shape
            for name, shape in known.items()
            if name.endswith(".weight") and len(shape) == 2 and not name.startswith("head.")
        }
        if not linear:
            raise Misuse(f"The model {self.options.of!r} has no Linear layer but its head.", "Adapt another model.")
        for layer in self.options.layers:
            if layer not in linear:
                raise Misuse(
                    f"The model {self.options.of!r} has no Linear layer {layer!r} to adapt.",
                    did_you_mean(layer, linear) or f"It has: {', '.join(linear)}.",
                )
            if self.options.rank > min(linear[layer]):
                outputs, given = linear[layer]
                told = f"A rank of {self.options.rank} is too large for the layer {layer!r}"
                raise Misuse(
                    f"{told}, which maps {given} values to {outputs}.", f"State a rank of {min(linear[layer])} or less."
                )
        if len(set(self.options.layers)) < len(self.options.layers):
            raise Misuse("The model 'adapters' names a layer twice.", "Name each once.")
        self._linear = {name: shape for name, shape in linear.items() if name in self.options.layers}
        self.weights = self.options.weights

    @property
    def scale(self) -> float:
        """What an adapter's product counts."""
        return float(self.options.alpha) / self.options.rank

    def shapes(self) -> Shapes:
        found: Shapes = {}
        for name, (outputs, given) in self._linear.items():
            found |= {f"{name}.{A}": (self.options.rank, given), f"{name}.{B}": (outputs, self.options.rank)}
        return found | {name: shape for name, shape in self.base.shapes().items() if name.startswith("head.")}

    def frozen(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        kept = {name: shape for name, shape in self.base.shapes().items() if not name.startswith("head.")}
        return {name: (self.in_file(name), shape) for name, shape in kept.items()}

    def in_file(self, name: str) -> str:
        """What the file of the frozen values calls an array, or a module."""
        for known, other in sorted(self.options.names.items(), key=lambda pair: -len(pair[0])):
            if name == known or name.startswith(f"{known}."):
                return other + name[len(known) :]
        return name

    def peft_files(self, arrays: Mapping[str, Floats]) -> dict[str, bytes]:
        """The files that the package peft loads adapters from, by name, for the model whose values lie in the file: modules
        are called as there, the head is a module to save, values are float32.

        Args:
            arrays: of :meth:`shapes`.
        """
        from safetensors.numpy import save

        layers = [self.in_file(name) for name in self._linear]
        config = {
            "peft_type": "LORA",
            "task_type": None,
            "base_model_name_or_path": None,
            "r": self.options.rank,
            "lora_alpha": float(self.options.alpha),
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": False,
            "target_modules": layers,
            "modules_to_save": [self.in_file("head")],
            "inference_mode": True,
        }
        values = {PEFT + self.in_file(name): np.asarray(array, dtype=np.float32) for name, array in arrays.items()}
        return {
            "adapter_config.json": (json.dumps(config, indent=2) + "\n").encode(),
            "adapter_model.safetensors": save(values, {"format": "pt"}),
        }

    def network(self) -> Network:
        from veilsum_privacy.training.arrays import put
        from veilsum_privacy.training.models.networks import Adapted

        base = self.base.network()
        put(base, self.base.initial(0))
        return Adapted(base, tuple(self._linear), self.options.rank, self.scale, self.options.weights, self.frozen())

    def initial(self, seed: int) -> dict[str, Floats]:
        values = super().initial(seed)
        for name in values:
            if name.endswith(B):
                values[name] = np.zeros_like(values[name])
            elif name.endswith(A):
                values[name] *= math.sqrt(1.0 / 6.0)
        return values
