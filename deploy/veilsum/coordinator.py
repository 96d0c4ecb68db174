"""What an analyst asks of a coordinator, whether over the network (:mod:`veilsum.remote`) or in this process."""

import builtins
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from veilsum.remote import CoordinatorInfo, StudyInfo
from veilsum_node.identity import Credentials
from veilsum_privacy.ledger.entries import Mechanism
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.study import Study


class Coordinator(Protocol):
    """A coordinator as its analysts see it; methods, values and errors are those of :class:`veilsum.remote.Remote`."""

    def describe(self) -> CoordinatorInfo:
        """Who the coordinator is and who is connected."""

    def spending(self, dataset: str) -> dict[str, Counter[Mechanism]] | None:
        """What the caller's studies have released of a dataset, by participant; None where it cannot tell."""

    def submit(self, study: Study, analyst: Credentials) -> bytes:
        """Sign and submit a study; returns its digest."""

    def list(self) -> builtins.list[StudyInfo]:
        """The caller's studies, oldest first."""

    def find(self, prefix: str) -> bytes:
        """The digest of the one study whose hexadecimal digest begins with ``prefix``."""

    def show(self, study: bytes) -> StudyInfo:
        """A study's state."""

    def abort(self, study: bytes) -> StudyInfo:
        """Stop a study; returns its state after."""

    def watch(self, study: bytes) -> Iterator[StudyInfo]:
        """Yield the study's state at every change until it is over."""

    def fetch(self, study: bytes, directory: Path, *, proof: bool = True) -> Result:
        """Fetch a finished study's result into a directory."""

    def fetch_checkpoint(self, study: bytes, directory: Path, number: int | None = None) -> tuple[Result, int]:
        """Fetch a model that a study kept on its way, and after which round."""
