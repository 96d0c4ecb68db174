"""Configuration files for a start: every key with its default and what it means, for an engineer to edit.

They stand beside this module. The defaults are those of the configuration models; the tests hold both together.
"""

from importlib.resources import files
from pathlib import Path
from string import Template

from veilsum_node.identity import Role
from veilsum_node.identity.files import write_new
from veilsum_node.process.confinement import offered

EXAMPLE_ADDRESS = "coordinator.example:8461"

_PROCESSES = 'isolation = "processes"       # network, keys and records in processes of their own, confined by the kernel'
_AUTO = 'isolation = "auto"            # "processes" once the kernel of this machine can confine them; until then all in one'


def write_starter(directory: Path, role: Role, address: str = EXAMPLE_ADDRESS) -> Path:
    """Write ``<role>.toml`` into a party's directory if there is none (an operator's is ``analyst.toml``); returns its path.

    Args:
        address: checked host:port of the coordinator.

    A participant's has its processes confined where this machine's kernel can do that.

    Raises:
        StateError: the file cannot be written.
    """
    role = Role.ANALYST if role is Role.OPERATOR else role  # both call the same commands, which look for one file
    path = directory / f"{role}.toml"
    if not path.exists():
        isolation = _PROCESSES if offered().enough else _AUTO
        starter = Template(files("veilsum_node.process").joinpath(f"{role}.toml").read_text(encoding="utf-8"))
        write_new(path, starter.substitute(address=address, isolation=isolation).encode())
    return path
