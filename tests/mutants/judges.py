"""Which tests judge which module: fast ones that run in one process, for faults are planted in the process that runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

_PARTS = "context agreement sums plans streams noise"
_SECURESUM = (
    *(f"tests/unit/test_securesum_{part}.py" for part in _PARTS.split()),
    "tests/integration/test_hostile_rounds.py",
)
_ONE_TIME = tuple(f"tests/unit/test_one_time_{part}.py" for part in ("keys", "evidence", "attacks"))
_ONE_TIME += tuple(f"tests/unit/test_securesum_{part}.py" for part in ("sums", "plans", "streams", "locks"))
_ONE_TIME_MODULES = (
    "streams packed ring products short_products short_keys one_time_keys key_shares data_masks sum_plan check_words opening"
    " contributions"
)
_NOISE = ("tests/unit/test_noise.py", "tests/unit/test_steps.py", "tests/unit/test_unrounded.py")
_CLIPPING = ("tests/unit/test_clipping.py", "tests/unit/test_tasks_moments.py")
_ACCOUNTING = ("tests/unit/test_composition.py", "tests/unit/test_accounting.py")
_GAUSSIAN = tuple(f"tests/unit/test_{name}.py" for name in ("domination", "gaussian_rule", "accounting"))
_LEDGER = {
    "ledger": ("", "_verification", "_witnessed", "_against"),
    "gate": ("", "_verification", "_witnessed", "_against"),
    "rules": ("_rules", "_verification"),
    "sums": ("_totals", "_rules", "_verification", ""),
    "totals": ("_totals", "_rules", "_verification", ""),
    "checks": ("_checks", "_witnessed"),
    "receipts": ("_receipts", "_checks", "_witnessed"),
    "entries": ("_entries", "_rules", "_receipts", "_verification"),
}
_ROUNDS = (
    "tests/integration/test_round_rules.py",
    "tests/integration/test_check_rules.py",
    *(f"tests/integration/test_hostile_{part}.py" for part in ("rounds", "masks", "checks", "accounts", "studies")),
    "tests/integration/test_kept.py",
)

JUDGES: dict[str, tuple[str, ...]] = {
    "privacy/veilsum_privacy/securesum": _SECURESUM,
    "privacy/veilsum_privacy/securesum/agreed.py": (
        "tests/unit/test_securesum_context.py",
        "tests/unit/test_securesum_agreement.py",
        "tests/unit/test_power_moments.py",
        "tests/unit/test_unrounded.py",
        "tests/integration/test_kept.py",
    ),
    **{f"privacy/veilsum_privacy/securesum/{part}.py": _ONE_TIME for part in _ONE_TIME_MODULES.split()},
    "privacy/veilsum_privacy/results/sum_evidence.py": _ONE_TIME,
    "privacy/veilsum_privacy/results/whole_sums.py": _ONE_TIME,
    "privacy/veilsum_privacy/results/former": ("tests/unit/test_former_results.py", "tests/unit/test_securesum_context.py"),
    "privacy/veilsum_privacy/securesum/seal_files.py": ("tests/unit/test_seal_files.py",),
    "privacy/veilsum_privacy/securesum/rounding.py": ("tests/unit/test_one_time_rounding.py",),
    "privacy/veilsum_privacy/securesum/graph.py": ("tests/unit/test_securesum_graph.py",),
    **{f"privacy/veilsum_privacy/mechanism/{part}.py": _NOISE for part in ("noise", "noise_plan")},
    "privacy/veilsum_privacy/mechanism/steps.py": ("tests/unit/test_steps.py", "tests/integration/test_fresh_noise.py"),
    "privacy/veilsum_privacy/mechanism/clipping.py": _CLIPPING,
    "privacy/veilsum_privacy/mechanism/exact.py": ("tests/unit/test_features.py",),
    "privacy/veilsum_privacy/accounting": _ACCOUNTING,
    **{
        f"privacy/veilsum_privacy/accounting/{part}.py": ("tests/unit/test_losses.py", "tests/unit/test_composition.py")
        for part in ("losses", "estimate", "figures")
    },
    "privacy/veilsum_privacy/accounting/prices.py": ("tests/unit/test_prices.py",),
    **{f"privacy/veilsum_privacy/accounting/{part}.py": _GAUSSIAN for part in ("domination", "accountant", "gaussian")},
    **{
        f"privacy/veilsum_privacy/ledger/{module}.py": tuple(f"tests/unit/test_ledger{part}.py" for part in parts)
        for module, parts in _LEDGER.items()
    },
    **{f"participant/veilsum_participant/protocol/{part}.py": _ROUNDS for part in ("contributions", "payloads", "openings")},
    "privacy/veilsum_privacy/computation/weights.py": ("tests/unit/test_weights.py",),
    "privacy/veilsum_privacy/mechanism/factors.py": ("tests/unit/test_factors.py", "tests/unit/test_gradients.py"),
    "privacy/veilsum_privacy/mechanism/answering.py": ("tests/unit/test_local_training.py",),
    "privacy/veilsum_privacy/mechanism/requests.py": ("tests/unit/test_local_training.py",),
    "privacy/veilsum_privacy/training/losses.py": ("tests/unit/test_outcomes.py",),
    "privacy/veilsum_privacy/tasks/outcomes.py": ("tests/unit/test_outcomes.py",),
    "privacy/veilsum_privacy/tasks/site_scores.py": (
        "tests/unit/test_clustered_errors.py",
        "tests/unit/test_robust_errors.py",
    ),
    "privacy/veilsum_privacy/tasks/calibration_step.py": ("tests/unit/test_recalibration.py", "tests/unit/test_tasks.py"),
    "aggregation/veilsum_aggregation/clustered.py": ("tests/unit/test_clustered_errors.py",),
    "coordinator/veilsum_coordinator/storage/long_values.py": ("tests/integration/test_long_values.py",),
    "coordinator/veilsum_coordinator/parts/federation.py": ("tests/unit/test_long_arrays.py",),
    "participant/veilsum_participant/data/duck.py": ("tests/unit/test_sources.py", "tests/unit/test_stream.py"),
    "participant/veilsum_participant/protocol/policy.py": ("tests/unit/test_policy.py", "tests/unit/test_noise_shares.py"),
    "participant/veilsum_participant/protocol/limits.py": ("tests/unit/test_round_limits.py",),
    "participant/veilsum_participant/protocol/budgets.py": ("tests/unit/test_promised_releases.py",),
}
"""By module, or by package for all that are not named."""


def modules() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every module that is judged, and by what."""
    for path, judges in JUDGES.items():
        if path.endswith(".py"):
            yield path, judges
            continue
        for file in sorted((ROOT / path).glob("*.py")):
            name = file.relative_to(ROOT).as_posix()
            if name not in JUDGES and file.name != "__init__.py":
                yield name, judges
