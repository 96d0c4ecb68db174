"""Verifies a result on disk by the proof that lies beside it: offline, with the federation's authority certificate alone."""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from veilsum.replay import Comparison, Replayed, RoundingFault, compare
from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.results.released_models import find_released, result_projection
from veilsum_coordinator.results.reproduction import may_differ_from_coordinators, one_thread
from veilsum_node.errors import HostileInput, VeilsumError, raising
from veilsum_node.phrases import counted
from veilsum_node.process.imports import networks_may_be_missing
from veilsum_privacy.results.proof_check import (
    CheckedRelease,
    CheckedStudy,
    ReleaseChecker,
    as_former,
    check_study,
    read_proof,
)
from veilsum_privacy.results.proof_files import STUDY_FILE, ReleaseEntry, StudyProof, read_entries
from veilsum_privacy.results.release_check import ProofFault, part
from veilsum_privacy.results.result import ARRAYS, MANIFEST, Result, load_result, result_files, study_fields
from veilsum_privacy.study.encoder import Projection
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks import check_former
from veilsum_privacy.tasks.model_tables import ModelTables
from veilsum_proto import SOFTWARE

ROUNDING = 1e-9
"""Largest relative difference that a client lets pass in what it fetched: a processor of another kind may round otherwise."""

_SOFTWARE = re.compile(r"veilsum \d{1,4}(\.\d{1,4}){1,3}[a-z0-9.+-]{0,32}")

_WHOLE = "Fetch the result again."

_CONSPIRACY = (
    "That a sum is that of its cohort's contributions, if the coordinator conspires with a member: every member holds "
    "the study's keys, so these two can have another sum decrypted and signed for. The coordinator alone cannot."
)


class RepetitionFault(ProofFault):
    """Every signature, cohort and consent holds, but this version makes other numbers of the sums, and another made them.

    An honest result of another version is of this kind, and so is an altered one: the version that made it tells them apart.

    Attributes:
        made_by: the software that the manifest names; None in results of versions before 0.3.
        releases: sums whose proofs hold.
    """

    def __init__(self, fault: ProofFault, made_by: str | None, releases: int) -> None:
        named = made_by or "none, as those of versions before 0.3"
        super().__init__(
            fault.where,
            f"The signatures, cohorts and consents of its {counted(releases, 'sum')} hold. But this software, {SOFTWARE}, does"
            f" not repeat the result; the software that made it is by its manifest {named}. First difference: {fault.what}",
            f"Verify it with {made_by or 'the version that made it'}: that one repeats an honest result, and none that was"
            f" altered. {fault.advice}".strip(),
        )
        self.made_by, self.releases = made_by, releases


@dataclass(frozen=True, repr=False)
class Verified:
    """What was verified of a result.

    Attributes:
        study: the study and its roster.
        releases: that the result was made of, without their values.
        comparison: how its numbers agree with those that the releases make.
        replayed: whether all that was broadcast is what the method makes of the releases before it.
        proof_bytes: size of the proof's files.
        made_by: the software that the manifest names, which nobody signed; None in results of versions before 0.3.
    """

    study: CheckedStudy
    releases: tuple[CheckedRelease, ...]
    comparison: Comparison
    replayed: bool
    proof_bytes: int
    made_by: str | None = None

    def __repr__(self) -> str:
        members = ", ".join(member.name for member in self.study.roster.members)
        return f"<Verified {self.study.study.name!r}: {counted(len(self.releases), 'sum')} that {members} signed for>"

    @property
    def fields(self) -> dict[str, Any]:
        """What was found, as JSON values."""
        study, roster = self.study.study, self.study.roster
        decryptors = sorted({name for item in self.releases for name in item.decryptors})
        return {
            "study": self.study.digest.hex(),
            "name": study.name,
            "method": study.method,
            "federation": study.federation,
            "analyst": self.study.analyst.name,
            "coordinator": study.coordinator,
            "roster": {member.name: member.identity.fingerprint for member in roster.members},
            "releases": len(self.releases),
            "attempts_without_release": self.attempts_without_release,
            "receipts_without_release": self.receipts_without_release,
            "values": sum(item.task.size for item in self.releases),
            **({"decrypted_by": decryptors} if decryptors else {}),
            "exact": self.comparison.exact,
            "largest_difference": self.comparison.largest,
            "broadcasts": self.replayed,
            "proof_bytes": self.proof_bytes,
            "made_by": self.made_by,
        }

    @property
    def attempts_without_release(self) -> int:
        """Attempts before the last release that were given up, or lost after members had consented. The files do not tell
        which, and nothing of what came after the last release."""
        return self.releases[-1].assignment.attempt - len(self.releases)

    @property
    def receipts_without_release(self) -> dict[str, int]:
        """How many contributions each member signed for, before its last one that is in a release, of which none is."""
        signed: dict[str, int] = {}
        last: dict[str, int] = {}
        for item in self.releases:
            last |= item.numbers
            signed |= {name: signed.get(name, 0) + 1 for name in item.numbers}
        return {name: last[name] - signed[name] for name in last}

    @property
    def _former(self) -> bool:
        """Whether members decrypted these sums, as they did up to version 5 of the protocol."""
        return any(item.decryptors for item in self.releases)

    @property
    def proves(self) -> list[str]:
        """What follows from it."""
        study, count = self.study.study, len(self.releases)
        numbers = (
            "Every number of the result is what the method makes of these sums: it was computed again, to the bit."
            if self.comparison.exact
            else "Every number of the result is what the method makes of these sums, up to a relative difference of "
            f"{self.comparison.largest:.1g}: this machine rounds differently."
        )
        found = [
            f"{self.study.analyst.name} signed this study, and every member of its roster signed that it takes part; the keys "
            "are certified by the authority whose certificate was given.",
            f"The result was made of {count} sum{'s' if count != 1 else ''}, none missing and no more than the study declares."
            " Every member of each cohort signed for the same study, roster, cohort, task, noise and broadcast,"
            " and consented.",
            *(
                ["Two members of each cohort, who hold the key, signed that the sum opened to exactly these values."]
                if self._former
                else [
                    "Each sum opens to exactly these values: it was opened again here, from its cohort's consents, and"
                    " nobody's word was taken for it.",
                    "Nobody could have forged a sum, the coordinator together with members neither: before anybody consented,"
                    " every member of the cohort signed for what the sum had to agree with. That holds if one of them kept to"
                    " the protocol, but for a chance of 2^-84 a sum.",
                ]
            ),
            numbers,
        ]
        if self.replayed:
            found.append("What was broadcast for each sum is what the method makes of the sums before it.")
        return found if study.privacy.epsilon is None else [*found, self._noise]

    @property
    def _noise(self) -> str:
        return "Every receipt names the noise that the study declares for its sum."

    @property
    def _unreleased(self) -> str:
        attempts = self.attempts_without_release
        if attempts == 0:
            return (
                "Whether a sum was opened after the last of these and withheld: every attempt before it has its release. The"
                " sites know what they consented to."
            )
        most = max(self.receipts_without_release.values())
        return (
            f"Why {counted(attempts, 'attempt')} before the last release {'has' if attempts == 1 else 'have'} none (a member"
            f" signed for up to {counted(most, 'contribution')} to such): a coordinator with one member can open a sum, look"
            " at it, and declare its round lost. The sites know what they consented to and never saw released."
        )

    @property
    def leaves_open(self) -> list[str]:
        """What it cannot show."""
        left = [
            "That the sites' records are true, and that each site computed its part and drew its noise as it signed.",
            "That the members are who they should be: the authority may certify whom it likes. Compare the roster's key "
            "fingerprints with those that the sites tell you.",
            *([_CONSPIRACY] if self._former else []),
            self._unreleased,
            "When it was signed: certificates must only have been valid at some time of the study's life.",
        ]
        if not self.replayed:
            left.append("What was broadcast for each sum: it could not be computed again, to the bit, here.")
        return left


@dataclass(frozen=True)
class Look:
    """What a client says of a result that it fetched.

    Attributes:
        verified: what was verified; None if it was not.
        rounded: whether that needed a tolerance, as this machine rounds otherwise than the coordinator's.
        fault: what does not hold; empty if all does, or if the result has no proof.
        missing: why there is nothing to verify; empty if there is.
    """

    verified: Verified | None
    rounded: bool = False
    fault: str = ""
    missing: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        if self.verified is None:
            return {"verified": False, "fault": self.fault or None, "missing": self.missing or None}
        count, size = len(self.verified.releases), self.verified.proof_bytes
        return {"verified": True, "rounded": self.rounded, "releases": count, "bytes": size}


def look_at(directory: Path, authority: x509.Certificate, study: bytes) -> Look:
    """Verify a result that was just fetched for a study; one that agrees up to rounding passes, and that is said."""
    if not (directory / STUDY_FILE).exists():
        return Look(
            None, missing="The coordinator has no proof of it. Software before 0.2 kept none; --no-proof accepts it anyway."
        )
    try:
        try:
            return Look(verify_result(directory, authority, study=study))
        except ProofFault:  # on another kind of processor numbers may be rounded otherwise
            return Look(verify_result(directory, authority, study=study, tolerance=ROUNDING), rounded=True)
    except ProofFault as fault:
        return Look(None, fault=str(fault))


def verify_result(
    directory: Path,
    authority: x509.Certificate,
    *,
    study: bytes | None = None,
    uses: Path | None = None,
    tolerance: float = 0.0,
) -> Verified:
    """Verify a result by its proof, part by part.

    Args:
        directory: of the result, with its proof.
        study: digest of the one that it has to be of; None for any, which then only a reader of what is said can tell.
        uses: folder of results that the study builds on, for one that evaluates a released model.
        tolerance: largest relative difference of two numbers that is let pass, for machines that round otherwise. With 0, a
            result that this process repeats but for its rounding is verified by another process, as a coordinator computes.

    Raises:
        ProofFault: names the first thing that is wrong, or missing.
        RepetitionFault: what was signed holds, but another version made the result and this one does not repeat it.
        StateError: ``uses`` holds no result that the study names.
    """
    size = 0

    def read(name: str) -> bytes:
        nonlocal size
        data = _read(directory, name)
        size += len(data)
        return data

    found = {MANIFEST: _read(directory, MANIFEST)}
    manifest, entries = _manifest(found[MANIFEST])
    with part(STUDY_FILE):
        proof = StudyProof.parse(read(STUDY_FILE))
    checked = check_study(proof, authority)
    if study not in (None, checked.digest):
        told = f"It is of the study {checked.digest.hex()[:12]} ({checked.study.name}), and not of the one that was asked for."
        raise ProofFault(STUDY_FILE, told, "The coordinator gave another study's result: do not use it.")
    software = manifest.get("software")
    try:
        with part(STUDY_FILE, "This version cannot repeat it:"):
            check_former(declaration.task for declaration in checked.study.tasks)
    except ProofFault as fault:
        signed = list(_Opened(as_former(checked, entries, read), entries, read))
        raise RepetitionFault(fault, software, len(signed)) from fault
    releases = _Opened(checked, entries, read)
    with part(MANIFEST), releases.finished():
        result = load_result(directory)
    if ARRAYS in manifest["files"]:
        with releases.finished():
            found[ARRAYS] = _read(directory, ARRAYS)
    try:
        with releases.finished():
            replayed, made, again = _replay(
                checked, entries, releases, result, uses, exact=tolerance == 0.0, software=software
            )
            comparison = compare(manifest, found, made, result, again, tolerance)
    except ProofFault as fault:
        rounded = isinstance(fault, RoundingFault) and tolerance == 0.0 and releases.fault is None
        apart = _repeated_apart(directory, authority, uses) if rounded and may_differ_from_coordinators() else None
        if apart is not None:
            replayed, comparison = apart, Comparison(True, 0.0)
        elif software == SOFTWARE or releases.fault is not None:
            raise
        else:
            raise RepetitionFault(fault, software, len(releases.seen)) from fault
    return Verified(checked, tuple(releases.seen), comparison, replayed, size, software)


def _repeated_apart(directory: Path, authority: x509.Certificate, uses: Path | None) -> bool | None:
    """Have a process of its own verify the result to the bit, by a coordinator's loops: here NumPy was loaded before they were
    chosen. Whether it repeated the broadcasts too, and None if it did not verify the result."""
    with tempfile.NamedTemporaryFile(suffix=".pem") as certificate:
        certificate.write(authority.public_bytes(Encoding.PEM))
        certificate.flush()
        command = [sys.executable, "-P", "-m", "veilsum.cli", "study", "verify", str(directory.absolute())]
        used = [] if uses is None else ["--uses", str(uses.absolute())]
        options = ["--authority", certificate.name, *used, "--json"]
        done = subprocess.run([*command, *options], stdin=subprocess.DEVNULL, capture_output=True, check=False)  # noqa: S603
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return None
    return bool(found["broadcasts"]) if done.returncode == 0 and found["exact"] else None


class _Opened(Iterator[CheckedRelease]):
    """The releases one after the other, each checked, opened and given out once: its values are as large as a model.

    Attributes:
        seen: those so far, without their values.
        fault: of the first one that does not hold.
    """

    def __init__(self, checked: CheckedStudy, entries: Iterable[ReleaseEntry], read: Callable[[str], bytes]) -> None:
        self._checker, self._left, self._read = ReleaseChecker(checked), iter(entries), read
        self.seen: list[CheckedRelease] = []
        self.fault: ProofFault | None = None

    def __next__(self) -> CheckedRelease:
        entry = next(self._left)
        try:
            release = self._checker.check(entry, partial(read_proof, entry, self._read))
        except ProofFault as fault:
            self.fault = fault
            raise
        self.seen.append(replace(release, values=release.values[:0].copy()))
        return release

    @contextmanager
    def finished(self) -> Iterator[None]:
        """Where anything inside fails, check what is left: a fault of what was signed goes before one of what was made."""
        try:
            yield
        except VeilsumError:
            if self.fault is None:
                for _ in self:
                    pass
            raise


def _manifest(data: bytes) -> tuple[dict[str, Any], list[ReleaseEntry]]:
    with part(MANIFEST):
        with raising(HostileInput("It is malformed.", _WHOLE), on=(ValueError, AttributeError, RecursionError)):
            manifest = json.loads(data)
            text = json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"
            named = manifest.get("software")
        proper = named is None if "software" not in manifest else isinstance(named, str) and bool(_SOFTWARE.fullmatch(named))
        if text != data or not proper or not isinstance(manifest.get("files"), dict):
            raise HostileInput("It does not have the form in which results are written.", _WHOLE)
        entries = read_entries(manifest)
        if not entries:
            raise HostileInput(
                "It names no release with a proof, so nothing can be proven.",
                "Results of simulations, checkpoints, and results of older software have no proof.",
            )
    return manifest, entries


def _replay(
    checked: CheckedStudy,
    entries: list[ReleaseEntry],
    releases: Iterator[CheckedRelease],
    result: Result,
    uses: Path | None,
    *,
    exact: bool,
    software: str | None,
) -> tuple[bool, dict[str, bytes], Result]:
    """Run the method again; whether its broadcasts were those of the proof, and the files and result that it makes."""
    study = checked.study
    encoder, known = _encoder(study, result, uses)
    federation = Replayed(study, releases, encoder, exact=exact and known)
    with networks_may_be_missing(), one_thread(), part(MANIFEST, "The method cannot be run again on the releases:"):
        made = get_method(study.method).run(federation)
    if federation.releases != len(entries):
        raise ProofFault(MANIFEST, f"It names {len(entries)} releases, but the method asks for {federation.releases}.")
    about = study_fields(study, checked.digest)
    return known and not federation.differing, result_files(made, study=about, releases=entries, software=software), made


def _encoder(study: Study, result: Result, uses: Path | None) -> tuple[Mapping[str, Floats], bool]:
    """Arrays that every round broadcasts, and whether they are all there."""
    evaluates = any(declaration.task == ModelTables.name for declaration in study.tasks)
    if uses is not None:
        return find_released(uses, study), True
    if not isinstance(study.encoder, Projection):
        return {}, not evaluates
    try:
        projection, arrays = result_projection(result)
    except VeilsumError:  # an evaluation repeats no projection
        return {}, False
    if projection != study.encoder:
        raise ProofFault(ARRAYS, "The projection in it is not the one that the study names.")
    return arrays, not evaluates


def _read(directory: Path, name: str) -> bytes:
    try:
        return (directory / name).read_bytes()
    except OSError as error:
        raise ProofFault(name, f"It cannot be read ({error.strerror}).", _WHOLE) from error
