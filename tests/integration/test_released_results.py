"""Results of version 0.2 prove themselves by the code of today, or name the version that proves them."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from cryptography import x509

from veilsum.verification import verify_result
from veilsum_privacy.results.proof_check import ProofFault

DATA = Path(__file__).parents[1] / "data" / "results" / "results-0.2.tar.gz"
"""Written by the code of 0.2.0 (commit 0080f6a4), with the proofs that its coordinator gave out and the
authority's certificate: the smallest study of each method below over four sites."""

PROVEN = ("fedavg", "fedpft", "fedsgd", "o-fedavg", "slot-align")
FORMER = {"federated-evaluation": "model-tables", "statistics": "tables"}


@pytest.fixture
def results(tmp_path: Path) -> dict[str, Path]:
    """By method."""
    with tarfile.open(fileobj=io.BytesIO(DATA.read_bytes())) as archive:
        archive.extractall(tmp_path, filter="data")
    found = {json.loads(manifest.read_bytes())["method"]: manifest.parent for manifest in tmp_path.glob("*/manifest.json")}
    assert sorted(found) == sorted((*PROVEN, *FORMER))
    return found


def authority(results: dict[str, Path]) -> x509.Certificate:
    pem = next(iter(results.values())).parent / "authority.pem"
    return x509.load_pem_x509_certificate(pem.read_bytes())


@pytest.mark.parametrize("method", PROVEN)
def test_a_result_of_0_2_is_proven(results: dict[str, Path], method: str) -> None:
    """With its sums' words as they were decrypted then, the last ciphertext as long as the others. Digests of keys that
    were changed are found."""
    verify_result(results[method], authority(results))
    proof = next((results[method] / "proof").glob("round-*1.json"))
    content = json.loads(proof.read_bytes())
    content["keys"] = "0" * len(content["keys"])
    proof.write_text(json.dumps(content, sort_keys=True, separators=(",", ":")))
    with pytest.raises(ProofFault):
        verify_result(results[method], authority(results))


@pytest.mark.parametrize("method", FORMER)
def test_a_result_of_a_former_task_names_the_version_that_proves_it(results: dict[str, Path], method: str) -> None:
    with pytest.raises(ProofFault, match=r"was removed after version 0\.2") as caught:
        verify_result(results[method], authority(results))
    assert repr(FORMER[method]) in caught.value.advice
