"""What authenticates is compared in constant time: every comparison of such bytes in the source is found, or excused by name.

A comparison with ``==`` or ``in`` tells by its time how far two values agree. That matters where one side is secret or is
the word by which somebody is let in: consents, seeds, tags, tokens, passwords, and the commitments and proofs made of them. It
does not where both sides are public, as fingerprints, study digests and hashes of ledger entries are: who asks knows both.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("aggregation", "node", "privacy", "participant", "coordinator", "deploy")
NO_PARTIES = ("simulation", "grafana")
"""Parts of ``deploy`` that compute or draw, and let nobody in."""
SECRET = re.compile(
    r"(^|_)(tags?|consents?|mac|token|password|passphrase|secret|seeds?|commitment|proof|signature|authorization|private|key_pem"
    r"|box_key|tag_key|secret_key|key_bytes|promised|challenge)$"
)
PUBLIC_WORDS = re.compile(
    r"(^|_)(digests?|hash|hashes|hash_row|hash_facts|sha256|fingerprints?|nonce|head|hexdigest|study_digest|broadcast_digest"
    r"|model_digest|projection_digest|receipts_digest|consents_digest|payload)$"
)
_SAME_PAIR = "(found.certificate_pem, found.key_pem) {} (used.certificate_pem, used.key_pem)"
EXCUSED = {
    ("deploy/veilsum/mlflow_run.py", "found[0].data.tags.get(CONTENT) != content"): "the digest of a result that was released",
    (
        "coordinator/veilsum_coordinator/service/server.py",
        _SAME_PAIR.format("!="),
    ): "the files of the coordinator's own key",
    ("participant/veilsum_participant/session/client.py", _SAME_PAIR.format("==")): "the files of the site's own key",
    ("node/veilsum_node/identity/server_pair.py", "private.public_key() == first.public_key()"): "public keys",
    ("privacy/veilsum_privacy/ledger/export.py", "(entries, receipts) != promised"): "how many lines there are",
    ("privacy/veilsum_privacy/ledger/metrics.py", "kind not in (Kind.RECEIPTS, Kind.CONSENT)"): "kinds of entries",
    ("participant/veilsum_participant/protocol/patience.py", "kind in _BEFORE_CONSENT"): "kinds of directives",
    ("coordinator/veilsum_coordinator/storage/fence.py", "row.token != self._token"): "names a process, in its own database",
    ("privacy/veilsum_privacy/tasks/local_training.py", "seed == int(seed)"): "a public seed of a study is an integer",
    ("node/veilsum_node/config.py", "tag in get_args(field)"): "the tag of a union of types",
    ("coordinator/veilsum_coordinator/protocol/rounds.py", "name not in self.consents"): "whose consent is there",
    ("privacy/veilsum_privacy/results/proof_files.py", "proof.to_bytes() != data"): "a file that was handed out, written anew",
    ("privacy/veilsum_privacy/results/former/proof.py", "proof.to_bytes() != data"): "the same",
}
"""Comparisons of secrets' names that compare no secret, with the reason."""

PUBLIC_FILES = {
    "aggregation/": "mathematics",
    "deploy/": "an analyst's and a demonstrator's tools: nobody is let in",
    "coordinator/veilsum_coordinator/service/server.py": "fingerprints of the coordinator's own certificates",
    "coordinator/veilsum_coordinator/service/hub.py": "fingerprints of the coordinator's own certificates",
    "coordinator/veilsum_coordinator/protocol/machine.py": "nonces that everyone in a cohort is told",
    "coordinator/veilsum_coordinator/results/released_models.py": "digests of released encoders and models",
    "coordinator/veilsum_coordinator/protocol/rounds.py": "the digest of a payload, which the coordinator has",
    "coordinator/veilsum_coordinator/storage/journal.py": "digests of studies and broadcasts",
    "coordinator/veilsum_coordinator/protocol/restoration.py": "digests of broadcasts",
    "coordinator/veilsum_coordinator/service/shared.py": "digests of reports",
    "privacy/veilsum_privacy/audit/signed.py": "the digest of a report in its own file",
    "participant/veilsum_participant/applying/": "the layers of a network's head",
    "participant/veilsum_participant/studies.py": "digests of studies",
    "participant/veilsum_participant/protocol/approval.py": "digests of studies",
    "participant/veilsum_participant/protocol/budgets.py": "digests of studies",
    "participant/veilsum_participant/protocol/decisions.py": "digests of studies",
    "participant/veilsum_participant/checks/": "fingerprints of pins",
    "participant/veilsum_participant/settings/directory.py": "fingerprints in a directory that every site has",
    "participant/veilsum_participant/protocol/policy.py": "fingerprints of pins and of verified certificates",
    "participant/veilsum_participant/site.py": "the fingerprint of the site's own key",
    "participant/veilsum_participant/protocol/contributions.py": "the digest of a broadcast, a nonce that everyone is told",
    "participant/veilsum_participant/protocol/payloads.py": "the state of an attempt",
    "participant/veilsum_participant/protocol/core.py": "digests of studies",
    "participant/veilsum_participant/protocol/membership.py": "digests of studies, fingerprints of verified certificates",
    "participant/veilsum_participant/protocol/following.py": "digests of what was broadcast",
    "participant/veilsum_participant/protocol/openings.py": "digests of what was broadcast",
    "participant/veilsum_participant/protocol/endorsement.py": "hashes of ledger entries",
    "participant/veilsum_participant/protocol/recovery.py": "hashes of ledger entries",
    "participant/veilsum_participant/store/": "columns of a query",
    "privacy/veilsum_privacy/dossier/ledgers.py": "hashes of ledger entries",
    "participant/veilsum_participant/session/hooks.py": "digests of studies",
    "participant/veilsum_participant/worker/compiling.py": "digests of studies",
    "participant/veilsum_participant/worker/elsewhere.py": "digests of studies",
    "participant/veilsum_participant/settings/encoder_files.py": "the digest of a file beside the one of a signed study",
    "participant/veilsum_participant/cli/": "what its own operator typed",
    "participant/veilsum_participant/console/": "digests of studies and of the text that a page showed",
    "coordinator/veilsum_coordinator/console/": "fingerprints of requests and certificates",
    "privacy/veilsum_privacy/backup/backup.py": "digests of a backup's files, which its manifest names in the clear",
    "privacy/veilsum_privacy/results/proof": "digests of releases, in a proof that everyone may read",
    "privacy/veilsum_privacy/backup/restore.py": "hashes of ledger entries",
    "privacy/veilsum_privacy/results/result.py": "digests of a result's files",
    "privacy/veilsum_privacy/study/projections.py": "the digest of an encoder in a signed study",
    "privacy/veilsum_privacy/study/schema_file.py": "the digest of a public file of groups beside a schema's",
    "privacy/veilsum_privacy/tasks/feature_maps.py": "the digest of an encoder in a signed study",
    "node/veilsum_node/identity/": "fingerprints and algorithms of certificates",
    "privacy/veilsum_privacy/ledger/": "hashes of entries, digests of receipts, fingerprints: an export shows all of them",
    "node/veilsum_node/database.py": "the version of a layout",
    "privacy/veilsum_privacy/dossier/": "names of studies by digest",
    "privacy/veilsum_privacy/training/": "the digest of a broadcast model",
    "privacy/veilsum_privacy/securesum/": "digests of rosters and rounds, which everyone computes",
}
"""Where digests are compared, and why both sides are public there."""


class Read(NamedTuple):
    """What the checks look at in a file: a tree that is kept whole is looked through by every collection of garbage."""

    file: str
    compares: list[ast.Compare]
    digests: int


@cache
def sources() -> list[Read]:
    return [
        read(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "_pb2" not in path.name and "migrations" not in path.parts and not set(NO_PARTIES) & set(path.parts)
    ]


def read(file: str, text: str) -> Read:
    nodes = list(ast.walk(ast.parse(text)))
    compares = [node for node in nodes if isinstance(node, ast.Compare) and of_values(node)]
    return Read(file, compares, sum(isinstance(node, ast.Call) and by_digest(node.func) for node in nodes))


def by_digest(function: ast.expr) -> bool:
    """Whether it is what takes the same time whatever it compares."""
    name = getattr(function, "id", getattr(function, "attr", None))
    return name == "compare_digest" and ast.unparse(function) in ("compare_digest", "hmac.compare_digest")


def names(node: ast.expr) -> Iterator[str]:
    """The names that an operand is made of: ``a.b(c["d"])`` has a, b, c and d."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Constant) and isinstance(part.slice.value, str):
            yield part.slice.value


def of_values(node: ast.Compare) -> bool:
    """Whether it compares contents: neither identity nor order, no length and no constant but bytes."""
    equal = any(isinstance(operator, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for operator in node.ops)
    operands = [node.left, *node.comparators]
    counted = any(
        isinstance(item, ast.Call) and isinstance(item.func, ast.Name) and item.func.id in ("len", "sum", "type")
        for item in operands
    )
    plain = any(isinstance(item, ast.Constant) and not isinstance(item.value, bytes) for item in operands)
    return equal and not counted and not plain


def comparisons(nodes: Iterable[ast.Compare], pattern: re.Pattern[str]) -> Iterator[str]:
    """Comparisons one of whose operands has a name of the pattern, as source, but for conditions of queries."""
    for node in nodes:
        operands = [node.left, *node.comparators]
        if any(pattern.search(name.lower()) for item in operands for name in names(item)) and not _by_database(node):
            yield ast.unparse(node)


def _by_database(node: ast.Compare) -> bool:
    """Whether it is a condition of a query."""
    text = ast.unparse(node)
    return ".c." in text or "bindparam" in text or "_COLUMNS." in text


def test_no_secret_or_authenticating_value_is_compared_with_an_operator() -> None:
    found = {(file, text) for file, nodes, _ in sources() for text in comparisons(nodes, SECRET)}
    assert found - set(EXCUSED) == set(), "use hmac.compare_digest, or excuse it with the reason"


def test_digests_are_compared_only_where_both_sides_are_public() -> None:
    found = {(file, text) for file, nodes, _ in sources() for text in comparisons(nodes, PUBLIC_WORDS)}
    assert len(found) > 20
    unknown = [(file, text) for file, text in sorted(found) if not any(file.startswith(place) for place in PUBLIC_FILES)]
    assert unknown == []


def test_what_authenticates_is_compared_in_constant_time() -> None:
    """The places that let somebody in, or take somebody's word, do it by the function that takes the same time."""
    places = {
        "deploy/veilsum/login/person.py": 1,
        "privacy/veilsum_privacy/securesum/check_words.py": 2,
        "node/veilsum_node/identity/files.py": 1,
        "node/veilsum_node/telemetry/endpoint.py": 1,
        "node/veilsum_node/web/application.py": 2,
        "node/veilsum_node/web/people.py": 1,
        "privacy/veilsum_privacy/ledger/mirror.py": 1,
        "privacy/veilsum_privacy/ledger/receipts.py": 2,
        "participant/veilsum_participant/checks/snapshots.py": 1,
        "coordinator/veilsum_coordinator/protocol/machine.py": 1,
    }
    assert {file: count for file, _, count in sources() if count} == places


@pytest.mark.parametrize(
    ("text", "caught"),
    [
        ("given == self._token", True),
        ("tag != expected", True),
        ("shown in (row['consent'], None)", True),
        ("found.commitment == commitment(x)", True),
        ("password == b'x'", True),
        ("len(consent) != 32", False),
        ("consent is None", False),
        ("kind == 'token'", False),
        ("compare_digest(tag, expected)", False),
        ("STUDIES.c.tag_key == value", False),
    ],
)
def test_the_check_finds_what_it_should(text: str, caught: bool) -> None:
    assert bool(list(comparisons(read("", text).compares, SECRET))) == caught
