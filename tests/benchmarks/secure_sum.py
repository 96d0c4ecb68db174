"""Figures of the secure sum at several sizes and cohorts, beside CKKS in the same run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.ckks import CkksFigures, measure_ckks
from benchmarks.memory import measure_memory
from benchmarks.rounds import measure_round
from benchmarks.sums import measure_sum

COHORTS = (4, 16)


SIZES = (10_000, 1_000_000)


def measure_all(*, quick: bool) -> list[dict[str, Any]]:
    """Every size and cohort; ``quick``: the smallest size only."""
    results = []
    for size in SIZES[:1] if quick else SIZES:
        ckks = measure_ckks(size, repeats=9 if size <= 100_000 else 4)  # the cohort plays no part in it
        results += [measure(size, members, ckks) for members in COHORTS]
    return results


def measure(size: int, members: int, ckks: CkksFigures) -> dict[str, Any]:
    """All figures of one size and cohort: bytes, and CPU seconds except for ``round_s``."""
    secure = measure_sum(size, members, repeats=9 if size <= 100_000 else 4)
    peak = measure_memory(size, members, secure.sent)
    round_seconds, round_cpu, round_values = measure_round(size, members)
    client = secure.mask + secure.encrypt + secure.check
    return {
        "values": size,
        "participants": members,
        "bytes_per_value": secure.payload / size,
        "noise_s": secure.noise,
        "mask_s": secure.mask,
        "encrypt_s": secure.encrypt,
        "check_s": secure.check,
        "client_s": client,
        "add_s": secure.add,
        "open_s": secure.open,
        "coordinator_peak_bytes": peak,
        "round_s": round_seconds,
        "round_cpu_s": round_cpu,
        "round_values": round_values,
        "ckks_bytes_per_value": ckks.payload / size,
        "ckks_client_s": ckks.encrypt,
        "ckks_client_symmetric_s": ckks.encrypt_symmetric,
        "ckks_add_s": ckks.add,
        "ckks_open_s": ckks.open,
        "bytes_ratio": ckks.payload / secure.payload,
        "client_ratio": ckks.encrypt / client,
        "client_symmetric_ratio": ckks.encrypt_symmetric / client,
        "add_ratio": ckks.add / secure.add,
        "open_ratio": ckks.open / secure.open,
    }


ROWS = (
    ("bytes a value", "bytes_per_value", "{:.2f}", 1.0),
    ("  CKKS", "ckks_bytes_per_value", "{:.2f}", 1.0),
    ("  CKKS / veilsum", "bytes_ratio", "{:.1f}", 1.0),
    ("noise share, ms", "noise_s", "{:.1f}", 1e3),
    ("encode and mask, ms", "mask_s", "{:.1f}", 1e3),
    ("key, key share and encryption, ms", "encrypt_s", "{:.1f}", 1e3),
    ("check words, ms", "check_s", "{:.1f}", 1e3),
    ("encode, mask, encrypt and answer, ms", "client_s", "{:.1f}", 1e3),
    ("  CKKS encode and encrypt, ms", "ckks_client_s", "{:.1f}", 1e3),
    ("  CKKS / veilsum", "client_ratio", "{:.1f}", 1.0),
    ("  CKKS, symmetric, ms", "ckks_client_symmetric_s", "{:.1f}", 1e3),
    ("  CKKS, symmetric / veilsum", "client_symmetric_ratio", "{:.1f}", 1.0),
    ("add one contribution, ms", "add_s", "{:.1f}", 1e3),
    ("  CKKS, ms", "ckks_add_s", "{:.1f}", 1e3),
    ("  CKKS / veilsum", "add_ratio", "{:.1f}", 1.0),
    ("open and check, ms", "open_s", "{:.1f}", 1e3),
    ("  CKKS, ms", "ckks_open_s", "{:.1f}", 1e3),
    ("  CKKS / veilsum", "open_ratio", "{:.1f}", 1.0),
    ("coordinator's peak memory, MiB", "coordinator_peak_bytes", "{:.1f}", 2.0**-20),
    ("whole round in one process, CPU s", "round_cpu_s", "{:.2f}", 1.0),
    ("whole round in one process, elapsed s", "round_s", "{:.2f}", 1.0),
)


def table(results: Sequence[dict[str, Any]]) -> str:
    """The figures as a Markdown table, one column for each size and cohort."""
    heads = [f"{result['values']:,} values, {result['participants']} participants" for result in results]
    lines = [["", *heads], ["---", *("---:" for _ in heads)]]
    lines += [[name, *(form.format(result[key] * scale) for result in results)] for name, key, form, scale in ROWS]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("| " + " | ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)) + " |" for line in lines)
