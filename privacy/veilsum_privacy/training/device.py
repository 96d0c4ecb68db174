"""Where networks are computed: one device for the whole process, the CPU unless another one is chosen.

What bounds a record's part in a sum does not rest on a device's arithmetic. Gradients come back from it record by record;
their norms, the clipping, the sums and the noise are computed on the CPU in float64 and in integers, as they always are
(:mod:`.clipped_sums`). That a record's outputs and gradients depend on nothing but itself is checked on the device
(:mod:`.per_record`, :mod:`.places`), which is held to deterministic algorithms and to full float32. Perceptrons have their
gradients in closed form, on the CPU.
"""

import os

from veilsum_node.errors import ConfigurationError

CPU = "cpu"
_chosen = CPU


def chosen() -> str:
    """The device that networks of this process are computed on, as torch names it."""
    return _chosen


def choose(name: str) -> str:
    """Compute networks on a device from here on; returns it, as torch names it.

    Raises:
        ConfigurationError: torch finds no such device, or the name is none.
    """
    global _chosen
    _chosen = _found(name)
    return _chosen


def _found(name: str) -> str:
    kind, _, number = name.partition(":")
    if name == CPU:
        return CPU  # without torch, which takes seconds to load
    if not (name == "auto" or (kind == "cuda" and (name == "cuda" or number.isdecimal()))):
        raise ConfigurationError(f"No device is called {name!r}.", "Use cpu, cuda:N or auto.")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS adds up in an order of its own
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto" and not count:
        return CPU
    index = int(number or 0)
    if index >= count:
        raise ConfigurationError(
            f"This machine has no device {name}: "
            f"torch {torch.__version__} finds {count or 'no'} GPU{'s' * (count != 1)} here.",
            "Install the GPU's driver and a torch that is built for CUDA; or use auto or cpu.",
        )
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    return f"cuda:{index}"
