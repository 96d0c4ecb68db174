"""Known advisories on every pinned version, and bills of materials of what a participant and a coordinator install.

``make audit`` runs it with pip-audit installed in ``.tools/audit``. It fails where an advisory names a pinned version, and
where it could not learn that of any single package: a database that is away, or does not know a package, fails it too.

Written to ``audit/``: ``advisories.json`` as pip-audit found them, and a CycloneDX bill for each distribution.
"""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
BILLS = {"participant": ROOT / "participant" / "pyproject.toml", "coordinator": ROOT / "pyproject.toml"}
SECONDS = 600
OF_CUDA = re.compile(r"nvidia-|cuda-|triton$")
"""What torch's build for CUDA requires besides: of its versions torch decides, and none is pinned."""


def canonical(name: str) -> str:
    """A distribution's name as indices compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(constraints: Path) -> dict[str, str]:
    """Pinned versions by name."""
    lines = (line.partition("#")[0].strip() for line in constraints.read_text(encoding="utf-8").splitlines())
    return {canonical(name): version for name, _, version in (line.partition("==") for line in lines if line)}


def closure(project: Path) -> set[str]:
    """Names of what a distribution brings along at run time, by what is installed here, with torch's CPU build or another."""
    waiting = [(Requirement(text), frozenset[str]()) for text in tomllib.loads(project.read_text())["project"]["dependencies"]]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement, extras = waiting.pop()
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            continue
        key = (canonical(requirement.name), frozenset(requirement.extras))
        if key not in seen:
            seen.add(key)
            brought = [Requirement(text) for text in distribution(key[0]).requires or ()]
            waiting += [(item, key[1]) for item in brought if key[0] != "torch" or not OF_CUDA.match(canonical(item.name))]
    return {name for name, _ in seen}


def judge(report: dict[str, Any], wanted: dict[str, str]) -> list[str]:
    """What is wrong by a report of pip-audit; empty if every wanted version is known and no advisory names it."""
    found: list[str] = []
    known: dict[str, str] = {}
    for item in report.get("dependencies", []):
        name = canonical(item["name"])
        if "version" in item and "skip_reason" not in item:
            known[name] = item["version"]
        for advisory in item.get("vulns", []):
            fixed = ", ".join(advisory.get("fix_versions", [])) or "none"
            found.append(f"{name} {item.get('version')}: {advisory['id']}, fixed in {fixed}")
    unknown = sorted(name for name, version in wanted.items() if known.get(name) != version)
    if unknown:
        found.append(f"nothing could be learnt of {len(unknown)} of {len(wanted)} packages: {', '.join(unknown[:5])} ...")
    return found


def ask(auditor: Path, constraints: Path, out: Path) -> dict[str, Any]:
    """Run pip-audit over the pins; an empty report where it gave none."""
    out.unlink(missing_ok=True)
    command = [str(auditor), "--requirement", str(constraints), "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    try:
        ended = subprocess.run(  # noqa: S603 - our own program and files
            [*command, "--format", "json", "--output", str(out)], capture_output=True, text=True, timeout=SECONDS, check=False
        )
        return dict(json.loads(out.read_text(encoding="utf-8")))
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        print(f"pip-audit gave no report ({type(error).__name__}).", file=sys.stderr)
        if not isinstance(error, subprocess.TimeoutExpired) and "ended" in locals():
            print(ended.stderr[-2000:], file=sys.stderr)
        return {}


def write_bill(role: str, versions: dict[str, str], folder: Path, *, validate: bool = True) -> Path:
    """Write a distribution's bill of materials, CycloneDX 1.6, the same bytes for the same pins; its schema is checked."""
    project = BILLS[role]
    listed = folder / f"{role}.txt"
    listed.write_text("".join(f"{name}=={versions[name]}\n" for name in sorted(closure(project))), encoding="utf-8")
    out = folder / f"{role}.cdx.json"
    program = Path(sys.executable).with_name("cyclonedx-py")
    options = ["--mc-type", "application", "--spec-version", "1.6", "--output-reproducible", "--output-format", "JSON"]
    options += [] if validate else ["--no-validate"]
    command = [str(program), "requirements", "--pyproject", str(project), *options, "--output-file", str(out), str(listed)]
    subprocess.run(command, check=True, timeout=SECONDS)  # noqa: S603 - our own program and files
    return out


def main() -> int:
    """Audit and write; the exit status says whether all is known and well."""
    constraints, folder = ROOT / "constraints.txt", ROOT / "audit"
    folder.mkdir(exist_ok=True)
    versions = pins(constraints)
    for role in BILLS:
        print(f"{write_bill(role, versions, folder).relative_to(ROOT)} is written")
    found = judge(ask(ROOT / ".tools" / "audit" / "bin" / "pip-audit", constraints, folder / "advisories.json"), versions)
    for line in found:
        print(f"audit: {line}", file=sys.stderr)
    print("audit: FAILED" if found else f"audit: no advisory names one of {len(versions)} pinned versions")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
