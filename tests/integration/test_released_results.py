"""Former results prove themselves by the code of today, or name the version that proves them."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from support.commands import veilsum
from veilsum import replay, verification
from veilsum.verification import ROUNDING, RepetitionFault, verify_result
from veilsum_node.canonical import canonical
from veilsum_privacy.results.release_check import ProofFault
from veilsum_privacy.results.result import MANIFEST, load_result

DATA = Path(__file__).parents[1] / "data" / "results" / "results-0.2.tar.gz"
"""Written by the code of 0.2.0 (commit 0080f6a4), with the proofs that its coordinator gave out and the
authority's certificate: the smallest study of each method below over four sites."""

PROTOCOL_5 = DATA.with_name("results-protocol-5.tar.gz")
"""Written by the code of commit a95c370c, the last that spoke version 5 of the protocol: four studies over four sites."""

LAST_BITS = 1e-12
"""Their coordinators computed by the loops that their processors had, of AVX-512; without it 3.9e-14 was the most seen."""

PROVEN = ("fedavg", "fedpft", "fedsgd", "slot-align")
FORMER = {"federated-evaluation": "model-tables", "o-fedavg": "ridge-head", "statistics": "tables"}


@pytest.fixture
def results(tmp_path: Path) -> dict[str, Path]:
    """By method."""
    found = unpacked(DATA, tmp_path)
    assert sorted(found) == sorted((*PROVEN, *FORMER))
    return found


def unpacked(archived: Path, place: Path) -> dict[str, Path]:
    with tarfile.open(fileobj=io.BytesIO(archived.read_bytes())) as archive:
        archive.extractall(place, filter="data")
    return {json.loads(manifest.read_bytes())["method"]: manifest.parent for manifest in place.glob("*/manifest.json")}


def authority(results: dict[str, Path]) -> x509.Certificate:
    pem = next(iter(results.values())).parent / "authority.pem"
    return x509.load_pem_x509_certificate(pem.read_bytes())


@pytest.mark.parametrize("method", PROVEN)
def test_a_result_of_0_2_is_proven(results: dict[str, Path], method: str) -> None:
    """With its sums' words as they were decrypted then, the last ciphertext as long as the others. Digests of keys that
    were changed are found."""
    assert verify_result(results[method], authority(results), tolerance=ROUNDING).comparison.largest < LAST_BITS
    proof = next((results[method] / "proof").glob("round-*1.json"))
    content = json.loads(proof.read_bytes())
    content["keys"] = "0" * len(content["keys"])
    proof.write_text(json.dumps(content, sort_keys=True, separators=(",", ":")))
    with pytest.raises(ProofFault):
        verify_result(results[method], authority(results))


def test_results_of_protocol_5_are_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And say what they leave open, which version 6 of the protocol does not: a coordinator with a member. What was signed of
    one whose figures have another error since holds."""
    results = unpacked(PROTOCOL_5, tmp_path)
    assert sorted(results) == ["fedavg", "fedsgd", "regression", "statistics"]
    monkeypatch.setattr(verification, "SOFTWARE", "veilsum 0.3.0")  # not the version in the making that made them
    with pytest.raises(RepetitionFault, match="sampling_error") as caught:
        verify_result(results.pop("statistics"), authority(results))
    assert (caught.value.releases, caught.value.made_by) == (1, "veilsum 0.3.0.dev0")
    for directory in results.values():
        found = verify_result(directory, authority(results), tolerance=ROUNDING)
        assert found.comparison.largest < LAST_BITS
        assert len(found.fields["decrypted_by"]) >= 2
        assert found.fields["attempts_without_release"] == 0
        assert any("conspires with a member" in line for line in found.leaves_open)
        assert not any("could have forged" in line for line in found.proves)
        changed = tmp_path / "changed"
        for part, change in (
            ("keys", lambda text: "0" * len(text)),
            ("values", lambda text: text[:-4] + ("AAAA" if text[-4:] != "AAAA" else "BBBB")),
            ("consents", lambda items: items[::-1]),
        ):
            shutil.rmtree(changed, ignore_errors=True)
            shutil.copytree(directory, changed)
            proof = changed / "proof" / "round-000001.json"
            content = json.loads(proof.read_bytes())
            content[part] = change(content[part])
            proof.write_bytes(canonical(content))
            with pytest.raises(ProofFault):
                verify_result(changed, authority(results))


@pytest.mark.parametrize("method", FORMER)
def test_what_was_signed_of_a_former_task_holds_and_the_version_that_repeats_it_is_named(
    results: dict[str, Path], method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And where it does not hold, that is another fault: a sum, consent or receipt that was changed."""
    directory = results[method]
    assert load_result(directory).method == method
    with pytest.raises(RepetitionFault, match=r"was removed after version 0\.2") as caught:
        verify_result(directory, authority(results))
    assert repr(FORMER[method]) in caught.value.advice
    rounds = sorted((directory / "proof").glob("round-*.json"))
    assert caught.value.releases == len(rounds)
    code, out, _ = veilsum(capsys, "study", "verify", directory, "--authority", directory.parent / "authority.pem", "--json")
    assert (code, json.loads(out)["signatures"]) == (3, "hold")
    for part, change in (
        ("keys", lambda text: "0" * len(text)),
        ("values", lambda text: text[:-4] + ("AAAA" if text[-4:] != "AAAA" else "BBBB")),
        ("consents", lambda items: items[::-1]),
        ("receipts", lambda items: items[::-1]),
    ):
        kept = rounds[-1].read_bytes()
        content = json.loads(kept)
        content[part] = change(content[part])
        rounds[-1].write_bytes(canonical(content))
        with pytest.raises(ProofFault) as found:
            verify_result(directory, authority(results))
        assert not isinstance(found.value, RepetitionFault), part
        rounds[-1].write_bytes(kept)


def test_a_true_result_of_another_version_is_not_called_forged(
    results: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where this version makes other numbers of the same sums, what was signed is told apart from what is repeated."""
    directory = results["fedavg"]
    honest = replay.compare

    def differs(*arguments: Any) -> Any:
        honest(*arguments)
        raise ProofFault(MANIFEST, "summary.x is 1, but the releases give 2.")

    monkeypatch.setattr(verification, "compare", differs)
    with pytest.raises(RepetitionFault) as caught:
        verify_result(directory, authority(results))
    fault = caught.value
    assert fault.made_by is None
    assert fault.releases > 0
    for word in ("signatures, cohorts and consents", "hold", "versions before 0.3", "summary.x is 1"):
        assert word in fault.what
    code, out, _ = veilsum(capsys, "study", "verify", directory, "--authority", directory.parent / "authority.pem", "--json")
    assert code == 3
    shown = json.loads(out)
    assert (shown["valid"], shown["signatures"], shown["repeated"]) == (False, "hold", False)

    proof = next((directory / "proof").glob("round-*1.json"))  # what was signed comes first: a forged sum is status 1
    content = json.loads(proof.read_bytes())
    content["keys"] = "0" * len(content["keys"])
    proof.write_text(json.dumps(content, sort_keys=True, separators=(",", ":")))
    code, out, _ = veilsum(capsys, "study", "verify", directory, "--authority", directory.parent / "authority.pem", "--json")
    assert code == 1
    assert "signatures" not in json.loads(out)
