"""Read a frozen network from a file's bytes with torch, and refuse what a frozen network has no need of.

What loading trusts. A file is read only after its hash matched a signed study's and only from a path that the site's operator
configured, so whoever chose the network is trusted as the author of a program that runs here, in torch's own interpreter.
TorchScript archives are read without Python's pickle. ``torch.export`` archives can hold pickled objects and compiled
libraries; an archive with either is refused before torch opens it, and only tensors are unpickled. Both formats are parsed by
torch's C++ and Python code, which has no sandbox.

Refused as well: operators that print or touch files, and whatever could carry a value from one record to the next. This module
knows nothing of records; :mod:`veilsum_participant.data.encoders` runs what it reads. It imports torch when it is used.
"""

from __future__ import annotations

import io
import json
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from veilsum_node.errors import ConfigurationError

if TYPE_CHECKING:
    import torch

_STATE = "It keeps values between records, or uses objects of its own."
_FORBIDDEN = {
    "prim::GetAttr": _STATE,
    "prim::SetAttr": _STATE,
    "prim::CallMethod": _STATE,
    "prim::PythonOp": "It calls Python.",
    "prim::Print": "It prints.",
    "aten::warn": "It prints.",
    "aten::save": "It writes files.",
    "aten::from_file": "It opens files.",
}
_MEMBERS = re.compile(
    r"archive_format|archive_version|byteorder|\.format_version|\.storage_alignment|version|\.data/\w+"
    r"|models/model\.json|data/sample_inputs/model\.pt|data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)"
)
_PAYLOAD = re.compile(r"(weight|tensor)_\d+")
_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")


@dataclass(frozen=True)
class FrozenProgram:
    """A network that was read.

    Attributes:
        run: takes a float32 tensor (1, *inputs).
        tensors: all that it holds; none may ever change.
    """

    run: Callable[[torch.Tensor], Any]
    tensors: tuple[torch.Tensor, ...]
    _versions: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_versions", self._counted())

    @property
    def changed(self) -> bool:
        """Whether an operation has written into one of its tensors: torch counts these for each storage and its views."""
        return self._counted() != self._versions

    def _counted(self) -> tuple[int, ...]:
        return tuple(tensor._version for tensor in self.tensors)


def read_program(data: bytes, form: Literal["torchscript", "exported"], device: str = "cpu") -> FrozenProgram:
    """Read a network and freeze it: evaluation mode, no gradients, on a device as torch names it.

    Raises:
        ConfigurationError: not of this format, or refused; the message says why, without the file's name.
    """
    try:
        _check_whole(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's words on formats are for its author
            return _torchscript(data, device) if form == "torchscript" else _exported(data, device)
    except ConfigurationError:
        raise
    except Exception as error:  # whatever torch raises on a file that it cannot read
        writer = "torch.jit.save" if form == "torchscript" else "torch.export.save"
        raise ConfigurationError(
            f"It cannot be read as {form} ({type(error).__name__}).", f"Write it with {writer}, and this version of torch."
        ) from error


def _check_whole(data: bytes) -> None:
    """Insist that an archive is undamaged: on some that are not, torch's C++ ends the process where it should raise."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(damaged)


def _torchscript(data: bytes, device: str) -> FrozenProgram:
    import torch

    module = torch.jit.load(io.BytesIO(data), map_location=device).eval()  # type: ignore[no-untyped-call]
    # Freezing turns what no code writes to into constants, by torch's alias analysis: what is still an attribute is state.
    frozen = torch.jit.freeze(module, optimize_numerics=False)
    tensors = []
    for node in _nodes(frozen.graph):
        if node.kind() in _FORBIDDEN:
            raise _refused(_FORBIDDEN[node.kind()])
        if node.kind() == "prim::Constant" and "value" in node.attributeNames() and node.kindOf("value") == "t":
            tensors.append(node.t("value"))
    return FrozenProgram(frozen, tuple(tensors))


def _nodes(block: Any) -> Iterator[Any]:
    """All nodes of a graph, those of inner blocks too."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _exported(data: bytes, device: str) -> FrozenProgram:
    import torch

    _inspect_archive(data)
    program = torch.export.load(io.BytesIO(data))
    for node in program.graph.nodes:
        name = str(node.target)
        if "dropout" in name and True in node.args[1:]:
            raise _refused("It was exported in training mode.", "Call .eval() on the network before torch.export.export.")
        if name.startswith("aten.from_file"):
            raise _refused(_FORBIDDEN["aten::from_file"])
    if device != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    module = program.module()
    held = [value for part in module.modules() for value in (*part._parameters.values(), *part._buffers.values())]
    held += [value for part in module.modules() for value in vars(part).values()]
    return FrozenProgram(module, tuple(value for value in held if isinstance(value, torch.Tensor)))


def _inspect_archive(data: bytes) -> None:
    """Insist that an archive of torch.export holds a description, raw tensors and nothing else.

    Read with torch's own reader, so that no second parser can see other members in it than the one that loads.
    """
    import torch

    reader = torch._C.PyTorchFileReader(io.BytesIO(data))
    names = list(reader.get_all_records())
    for name in names:
        if not _MEMBERS.fullmatch(name):
            raise _refused(
                f"It holds {name!r}, which does not belong to a plain exported program.",
                "Write a plain network with torch.export.save, or state the format that the file has.",
            )
    for name in _CONFIGS:
        for payload in json.loads(reader.get_record(name))["config"].values():
            if payload["use_pickle"] is not False or not _PAYLOAD.fullmatch(payload["path_name"]):
                raise _refused("It holds pickled objects.", "Export it with plain dense tensors.")
    if _mentions(json.loads(reader.get_record("models/model.json")), "expr_str"):
        raise _refused("Its shapes are symbolic.", "Export it for one record: a fixed shape with a batch of 1.")
    sample = reader.get_record("data/sample_inputs/model.pt")
    if sample:
        torch.load(io.BytesIO(sample), map_location="cpu", weights_only=True)  # or torch would unpickle anything there


def _mentions(value: Any, key: str) -> bool:
    """Whether a JSON value has the key anywhere."""
    if isinstance(value, dict):
        return key in value or any(_mentions(item, key) for item in value.values())
    return isinstance(value, list) and any(_mentions(item, key) for item in value)


def _refused(reason: str, advice: str = "Use a plain feed-forward network.") -> ConfigurationError:
    return ConfigurationError(reason, advice)
