"""The demo's working directory: claimed for one demo at a time, with identities, configurations and data.

Everything that the parties of a real federation keep apart lies here side by side, private keys included: for trying out only.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from veilsum_deploy.demo.hospitals import Hospitals
from veilsum_node.errors import StateError, raising
from veilsum_node.identity import load_credentials
from veilsum_node.identity.kit import Kit, make_kit

MARKER = ".veilsum-demo"
BUDGET = 10.0
"""Epsilon that each hospital's budget allows in all."""

DELTA = 1e-5
LARGEST_EPSILON = 3.0


@dataclass(frozen=True)
class Terms:
    """What every hospital of a demo agrees to; see :class:`~veilsum_participant.settings.config.Policy`.

    Attributes:
        budget: epsilon of its budget.
        max_epsilon: of one study.
        isolation: ``processes`` to run every hospital as processes that are confined, ``none`` as one.
    """

    budget: float
    max_epsilon: float
    methods: tuple[str, ...]
    noise: tuple[str, ...] = ("distributed",)
    disclosures: tuple[str, ...] = ("joint",)
    isolation: str = "none"


DEMO_TERMS = Terms(BUDGET, LARGEST_EPSILON, ("statistics", "fedcgs"))


@contextmanager
def claim(directory: Path) -> Iterator[Path]:
    """Take a directory for a demo: new, empty, or a former demo's, which is replaced. Held until the context ends.

    Raises:
        StateError: it holds something else, another demo runs in it, or it cannot be written.
    """
    marker = directory / MARKER
    if directory.exists() and not marker.is_file() and (not directory.is_dir() or any(directory.iterdir())):
        raise StateError(f"{directory} exists and is not a demo's.", "Name another directory with --directory.")
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(marker, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StateError(f"{directory} cannot be written ({error.strerror}).", "Name another with --directory.") from error
    try:
        with raising(StateError(f"A demo runs in {directory}.", "Wait for it, or name another with --directory."), on=OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for path in directory.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path != marker:
                path.unlink()
        yield directory.resolve()
    finally:
        os.close(descriptor)


def furnish(directory: Path, hospitals: Hospitals, clock: Callable[[], int]) -> Kit:
    """Make identities, the coordinator's configuration and each site's data file."""
    kit = make_kit(directory, list(hospitals.sites), clock=clock, federation="demo")
    (kit.coordinator.directory / "coordinator.toml").write_text(
        'listen = "localhost:0"\nidentity = "identity"\nstate = "state"\nready_file = "address"\n\n'
        "[waits]\nenrol = 60\nseal = 30\ncontribute = 60\nconsent = 20\ncheck = 20\ngrace = 1\n"
    )
    for party in kit.participants:
        hospitals.sites[party.name].write(party.directory / "data", "records")
    return kit


def configure_participants(
    kit: Kit, hospitals: Hospitals, address: str, min_cohort: int, clock: Callable[[], int], terms: Terms = DEMO_TERMS
) -> None:
    """Write every ``participant.toml``: the coordinator's address, the data, a budget, and a policy that pins all peers."""
    pins = {party.name: load_credentials(party.identity, clock()).identity.fingerprint for party in kit.participants}
    trusted = "".join(f"{_text(name)} = {_text(fingerprint)}\n" for name, fingerprint in pins.items())
    for party in kit.participants:
        dataset = hospitals.sites[party.name].name
        data = next((party.directory / "data").iterdir()).relative_to(party.directory)
        columns = hospitals.sites[party.name].schema.file_columns
        (party.directory / "participant.toml").write_text(
            f"isolation = {_text(terms.isolation)}\n"
            f'coordinator = {_text(address)}\nidentity = "identity"\nstate = "participant.db"\n\n'
            f"[datasets.{_text(dataset)}]\npath = {_text(str(data))}\ncolumns = {_texts(columns)}\n\n"
            f"[budgets.{_text(dataset)}]\nepsilon = {terms.budget}\ndelta = {DELTA}\n\n"
            f"[policy]\nmethods = {_texts(terms.methods)}\nanalysts = [{_text(kit.analyst.name)}]\n"
            f"min_cohort = {min_cohort}\nnoise = {_texts(terms.noise)}\ndisclosures = {_texts(terms.disclosures)}\n"
            f"max_epsilon = {terms.max_epsilon}\n\n"
            f"[policy.trusted]\n{trusted}"
        )


def _texts(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"


def _text(value: str) -> str:
    """A TOML string: JSON's escapes are TOML's."""
    return json.dumps(value)
