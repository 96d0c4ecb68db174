"""A released model as a study names it: by a digest of its architecture and its arrays."""

from collections.abc import Mapping

from veilsum_aggregation.arrays import Floats
from veilsum_node.canonical import canonical, digest
from veilsum_node.errors import HostileInput
from veilsum_privacy.training.arrays import flatten, from_broadcast
from veilsum_privacy.training.models import Architecture


def model_digest(architecture: Architecture, arrays: Mapping[str, Floats]) -> str:
    """SHA-256 of a model, 64 hexadecimal digits; two models with one digest agree in every bit.

    :func:`veilsum_node.canonical.digest` with the label ``veilsum/1/model`` over two parts: the canonical JSON of the
    architecture's name, inputs, resolved options, width, classes and shapes, and its arrays in their order, row by row, as
    little-endian IEEE 754 doubles.

    Raises:
        Misuse: an array is missing or has another shape.
    """
    about = {
        "name": architecture.name,
        "inputs": None if architecture.inputs is None else list(architecture.inputs),
        "options": architecture.options.model_dump(mode="json"),
        "width": architecture.width,
        "classes": architecture.classes,
        "shapes": [[name, list(shape)] for name, shape in architecture.shapes().items()],
    }
    vector = flatten(arrays, architecture.shapes())
    return digest("veilsum/1/model", canonical(about), vector.astype("<f8").tobytes()).hex()


def broadcast_model(architecture: Architecture, broadcast: Mapping[str, Floats], sha256: str) -> dict[str, Floats]:
    """The model's arrays out of a broadcast, which must be the model of this digest.

    Raises:
        HostileInput: an array is missing, has another shape or is not finite, or it is another model.
    """
    arrays = from_broadcast(broadcast, architecture.shapes())
    if model_digest(architecture, arrays) != sha256:
        raise HostileInput("The model in the broadcast is not the one that the study names.")
    return arrays
