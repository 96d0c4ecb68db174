"""Each key of a configuration is found on the line that sets it; and what the consoles carry of others is what it was."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import veilsum_node.web
from veilsum_coordinator.protocol.settings import read_coordinator_settings
from veilsum_node.web.configuration import key_lines, setting_rows

STATIC = Path(veilsum_node.web.__file__).parent / "static"

HTMX = "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717"
"""SHA-256 of dist/htmx.min.js of htmx.org 2.0.11, as its npm package has it."""

TEXT = '''# a comment
listen = "127.0.0.1:1"  # another
policy.noise = [
    "local", # [waits]
    "distributed",
]

[log]
file = """
level = "none"
[waits]
"""
[waits]
enrol = 5
"odd key" = { inner = 1, "x.y" = [ { deep = 2 } ] }
'''


def test_keys_are_where_they_are_set() -> None:
    assert key_lines(TEXT) == {
        ("listen",): 2,
        ("policy",): 3,
        ("policy", "noise"): 3,
        ("log",): 8,
        ("log", "file"): 9,
        ("waits",): 13,
        ("waits", "enrol"): 14,
        ("waits", "odd key"): 15,
        ("waits", "odd key", "inner"): 15,
        ("waits", "odd key", "x.y"): 15,
    }


VALUES = ("1", '"text"', "[1,\n2]", '"""a\n[b]\nc = 1"""', "{ a = 1 }", "'''\n'''")


@settings(max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(VALUES), st.integers(0, 2)), max_size=8))
def test_any_order_of_tables_and_values(parts: list[tuple[bool, str, int]]) -> None:
    """Lines are counted while the file is written; the parser is not asked where it is."""
    text, expected, table, line = "", {}, (), 1
    for number, (begins, value, blank) in enumerate(parts):
        text += "# x = 1\n" * blank
        line += blank
        if begins:
            table = (f"t{number}",)
            text += f"[t{number}]\n"
            expected[table] = line
            line += 1
        expected[*table, f"k{number}"] = line
        text += f"k{number} = {value}\n"
        line += value.count("\n") + 1
    tomllib.loads(text)
    found = key_lines(text)
    assert {key: found[key] for key in expected} == expected


def test_a_secret_is_hidden_and_a_variable_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "coordinator.toml"
    path.write_text('\ndatabase = "postgresql://a:secret@host/name"\n')
    monkeypatch.setenv("VEILSUM__WAITS__SEAL", "7")
    rows = {row["key"]: row for row in setting_rows(read_coordinator_settings(path), path)}
    assert rows["database"] == {"key": "database", "value": "(hidden)", "set in": "coordinator.toml, line 2"}
    assert rows["waits.seal"] == {"key": "waits.seal", "value": "7", "set in": "VEILSUM__WAITS__SEAL"}
    assert rows["waits.enrol"]["set in"] == "default"


def test_htmx_is_the_package_s_own() -> None:
    assert hashlib.sha256((STATIC / "htmx.min.js").read_bytes()).hexdigest() == HTMX
    assert "Zero-Clause BSD" in (STATIC / "htmx.LICENSE").read_text()


def test_no_style_or_script_comes_from_elsewhere() -> None:
    for path in (*STATIC.glob("*.css"), *STATIC.parent.glob("templates/*"), *_templates()):
        text = path.read_text()
        assert "//" not in text.replace("http://www.w3.org", "").replace("https://www.w3.org", ""), path
        assert "@import" not in text
        assert " style=" not in text
        assert "|safe" not in text


def _templates() -> list[Path]:
    root = Path(__file__).resolve().parents[2]
    found = [*root.glob("participant/*/console/templates/*"), *root.glob("coordinator/*/console/templates/*")]
    assert len(found) > 10
    return found


def test_the_consoles_are_small() -> None:
    """The issue's bound, of Python and templates together."""
    root = Path(__file__).resolve().parents[2]
    folders = ["node/veilsum_node/web", "participant/veilsum_participant/console", "coordinator/veilsum_coordinator/console"]
    files = [path for folder in folders for path in (root / folder).rglob("*") if path.suffix in (".py", ".j2")]
    assert 1000 < sum(len(path.read_text().splitlines()) for path in files) <= 3000
