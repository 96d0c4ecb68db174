"""On processors that NumPy and OpenBLAS serve with other loops, results verify to the bit and members take the same steps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from support.tools import give_up, need_tool
from veilsum import verification
from veilsum.verification import look_at, verify_result
from veilsum_coordinator.results import reproduction
from veilsum_privacy.results.release_check import ProofFault

STUDIES = ("fedpft", "regression", "slot-align")
"""Each makes later broadcasts of earlier sums, by exponentials or linear algebra."""

MAKE = """
import sys
from pathlib import Path
from veilsum_coordinator.results.reproduction import compute_reproducibly
compute_reproducibly()  # as the command of a coordinator begins
from cryptography.hazmat.primitives.serialization import Encoding
from support.durable import NAMES, WIDTH
from support.durable_studies import STUDIES
from support.federation import make_bed, make_data
from support.proving import lay_proof
place = Path(sys.argv[1])
bed = make_bed(place, make_data(NAMES, 24, WIDTH), disclosures=("joint", "per-site"))
for name in sys.argv[2:]:
    key = bytes(bed.local.run(STUDIES[name](bed), bed.analyst, place / "results").study)
    lay_proof(bed.hub.journal, place / "results" / key.hex())
    (place / "results" / key.hex()).rename(place / name)
(place / "authority.pem").write_bytes(bed.analyst.authority.public_bytes(Encoding.PEM))
"""

VERIFY = """
import json, sys
from pathlib import Path
from veilsum_coordinator.results.reproduction import choose_common_loops
if sys.argv[1] == "common":
    choose_common_loops()
from cryptography import x509
from veilsum.verification import verify_result
from veilsum_privacy.results.release_check import ProofFault
import veilsum_coordinator.results.reproduction, veilsum.verification
veilsum.verification.may_differ_from_coordinators = lambda: False  # no other process helps
import numpy
place, found = Path(sys.argv[2]), {}
for name in sys.argv[3:]:
    verified = verify_result(place / name, x509.load_pem_x509_certificate((place / "authority.pem").read_bytes()))
    found[name] = [verified.comparison.exact, verified.replayed]
print(json.dumps([found, [key for key, has in numpy._core._multiarray_umath.__cpu_features__.items() if has]]))
"""

STEPS = """
import hashlib
import numpy as np
from veilsum_privacy.training.server_steps import OptimiserParameters, SteppedModel
draw = np.random.Generator(np.random.PCG64(3))

def values(*shape):  # of 41 bits, by integers alone: the same wherever they are drawn
    return np.ldexp(draw.integers(-(2**40), 2**40, shape).astype(float), -38)

for name, momentum in (("sgd", 0.0), ("sgd", 0.9), ("adam", 0.0), ("yogi", 0.0)):
    optimiser = OptimiserParameters(name=name, learning_rate=0.37, momentum=momentum)
    model = SteppedModel(optimiser, 0.013, {"weight": values(300, 70), "bias": values(70)}, np.float32)
    for _ in range(12):
        gradients = {key: 1.7 * values(*array.shape) for key, array in model.shown().items()}
        for _ in model.step(lambda key, part: gradients[key].reshape(-1)[part], 37.3):
            pass
    arrays = [*model.shown().values(), *(array for kept in model.memory().values() for array in kept.values())]
    print(name, momentum, hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest())
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results as a coordinator's process makes them."""
    place = tmp_path_factory.mktemp("made")
    command = [sys.executable, "-c", MAKE, str(place), *STUDIES]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[1], timeout=300)
    return place


def authority(made: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((made / "authority.pem").read_bytes())


def emulated(program: str, *arguments: str) -> str:
    """What a program says on a processor of 2013, emulated as a whole."""
    command = [str(need_tool("qemu-x86_64")), "-cpu", "Haswell", sys.executable, "-c", program, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout


def test_an_emulated_processor_of_2013_verifies_what_this_one_computed(made: Path) -> None:
    """NumPy and OpenBLAS find no AVX-512 on it, whatever this machine has."""
    if not reproduction.may_differ_from_coordinators():
        give_up("this processor has no AVX2")
    found, features = json.loads(emulated(VERIFY, "common", str(made), *STUDIES))
    assert found == {name: [True, True] for name in STUDIES}
    assert "AVX2" in features
    assert not any(name.startswith(("AVX512", "X86_V4")) for name in features)


def test_a_member_on_an_emulated_processor_takes_the_same_steps() -> None:
    """As decision 114 rests on: they are of operations that every processor rounds in one way, whatever loops it takes."""
    done = subprocess.run([sys.executable, "-c", STEPS], check=True, capture_output=True, text=True, timeout=300)
    assert done.stdout.count("\n") == 4
    assert emulated(STEPS) == done.stdout


@pytest.mark.parametrize("name", STUDIES)
def test_a_process_that_has_loaded_numpy_verifies_it_to_the_bit(made: Path, name: str) -> None:
    found = verify_result(made / name, authority(made))
    assert found.comparison.exact
    assert found.replayed
    assert not look_at(made / name, authority(made), found.study.digest).rounded


def test_a_process_of_its_own_is_asked_where_loops_differ(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not believed of another result, nor asked for anything but rounding."""
    honest, asked = verification._repeated_apart, []

    def repeated(*arguments: Any) -> bool | None:
        asked.append(honest(*arguments))
        return asked[-1]

    class Rounding(verification.Replayed):
        """Computes a last bit otherwise than the coordinator."""

        def sum(self, label: str, broadcast: Any = None, **named: Any) -> Any:
            broadcast = {key: array * (1 + 2.0**-23) for key, array in (broadcast or {}).items()}
            return super().sum(label, broadcast, **named)

    monkeypatch.setattr(verification, "_repeated_apart", repeated)
    monkeypatch.setattr(verification, "Replayed", Rounding)
    found = verify_result(made / "regression", authority(made))
    assert (found.comparison.exact, found.replayed, asked) == (True, True, [True])
    manifest = made / "regression" / "manifest.json"
    kept = manifest.read_bytes()
    try:
        manifest.write_bytes(kept.replace(b'"cohort"', b'"cohorl"'))
        with pytest.raises(ProofFault):
            verify_result(made / "regression", authority(made))
    finally:
        manifest.write_bytes(kept)
    assert set(asked[1:]) <= {None}


def test_nothing_is_chosen_where_it_would_not_be_computed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy is loaded here, so a choice would come too late, and would only burden processes that this one starts."""
    monkeypatch.setattr(reproduction.os, "environ", {})
    reproduction.choose_common_loops()
    assert reproduction.os.environ == {}
