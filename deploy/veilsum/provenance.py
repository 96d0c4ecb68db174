"""What a result's files say of the study that made it, and of what it cost. Nothing here is verified."""

import json
from pathlib import Path
from typing import Any

from veilsum_node.errors import HostileInput
from veilsum_privacy.results.proof_files import STUDY_FILE, StudyProof
from veilsum_privacy.results.result import MANIFEST, WRITTEN_BY
from veilsum_privacy.study.study import Study, parse_study, study_digest


def read_manifest(directory: Path) -> dict[str, Any]:
    """A result's manifest.

    Raises:
        HostileInput: it is missing or malformed.
    """
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        manifest["study"].get("name"), manifest["method"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise HostileInput(f"{directory} holds no readable result.", WRITTEN_BY) from error
    return dict(manifest)


def stated_study(directory: Path) -> dict[str, Any]:
    """``study`` (the digest), ``name`` and ``method``, as far as the manifest says them, and of a checkpoint its ``round``.

    Raises:
        HostileInput: as :func:`read_manifest`.
    """
    manifest = read_manifest(directory)
    about = manifest["study"]
    found = {"study": about.get("digest"), "name": about.get("name"), "method": manifest["method"]}
    told: dict[str, Any] = {key: value for key, value in found.items() if isinstance(value, str)}
    return {**told, "round": about["round"]} if type(about.get("round")) is int else told


def stated_cost(directory: Path) -> dict[str, Any]:
    """``epsilon``, ``delta``, ``noise`` and ``unit`` of the signed study beside a result; of a checkpoint what its manifest
    says was spent until then; empty where neither is there.

    Raises:
        HostileInput: the study is malformed, or not the one that the manifest names.
    """
    study = signed_study(directory)
    if study is None:
        about = read_manifest(directory)["study"]
        return {key: about[key] for key in ("epsilon", "delta") if isinstance(about.get(key), int | float)}
    privacy = study.privacy
    return {"epsilon": privacy.epsilon, "delta": privacy.delta, "noise": privacy.noise, "unit": privacy.unit}


def signed_study(directory: Path) -> Study | None:
    """The study beside a result, whose schema has the labels and units that papers show; None where none lies there.

    Raises:
        HostileInput: as :func:`stated_cost`.
    """
    try:
        data = (directory / STUDY_FILE).read_bytes()
    except OSError:
        return None
    signed = StudyProof.parse(data).study
    study = parse_study(signed)
    if study_digest(signed).hex() != stated_study(directory).get("study"):
        raise HostileInput(f"{directory}: its proof is that of another study.", "Fetch the result again.")
    return study
