"""What walks through the guides sees every block of them, and would notice if a command printed something else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.guides import Walk, WalkError, missing_line, read_blocks, read_commands, write_toml

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = [
    DOCS / "deployment" / "operator.md",
    DOCS / "deployment" / "hospital.md",
    DOCS / "scientist.md",
    DOCS / "privacy-officer.md",
]


def guide(directory: Path, text: str) -> Path:
    page = directory / "guide.md"
    page.write_text(text, encoding="utf-8")
    return page


def walk(directory: Path, text: str) -> Walk:
    made = Walk(directory, environment={"PATH": "/usr/bin:/bin"}, replaced={"THERE": "here"}, stages={})
    try:
        for _ in made.walk(guide(directory, text)):
            pass
    finally:
        made.close()
    return made


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_every_block_of_a_guide_is_run_or_says_why_not(page: Path) -> None:
    blocks = read_blocks(page)
    assert sum(block.language == "console" and "not run" not in block.marks for block in blocks) >= 3
    for block in blocks:
        if not block.language:
            continue
        if "not run" in block.marks:
            assert len(block.marks["not run"].split()) >= 3, f"{block.where} does not say why"
        elif block.language == "console":
            assert read_commands(block), block.where
        else:
            assert {"file", "edit"} & set(block.marks), f"{block.where} is neither run nor marked"


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_no_command_of_a_guide_stands_outside_of_a_block(page: Path) -> None:
    assert re.findall(r"^(?: {4,}|\t)(?:veilsum|\$) .*", page.read_text(encoding="utf-8"), re.MULTILINE) == []


def test_commands_share_a_directory_and_print_what_is_shown(tmp_path: Path) -> None:
    text = """\
<!-- file: THERE/a.toml -->
```toml
x = 1
[t]
y = "THERE"
```
<!-- edit: here/a.toml -->
```toml
[t]
z = [1, 2]
```
```console
$ cd THERE
$ pwd; echo second \\
    line
.../here
second line
```
<!-- status: 3 -->
```console
$ exit 3
```
<!-- not run: it would never end -->
```console
$ sleep 1000
```
"""
    made = walk(tmp_path, text)
    assert [command for _, command, _ in made.ran] == ["cd here", "pwd; echo second \\\n    line", "exit 3"]
    assert tomllib.loads((tmp_path / "here" / "a.toml").read_text()) == {"x": 1, "t": {"y": "here", "z": [1, 2]}}


@pytest.mark.parametrize(
    "text",
    [
        "```console\n$ false\n```\n",
        "```console\n$ echo one\ntwo\n```\n",
        "```console\n$ false | cat\n```\n",
        "<!-- status: 1 -->\n```console\n$ true\n```\n",
        "```python\nprint()\n```\n",
        "<!-- background: x -->\n```console\n$ sh -c 'exit 4'\n```\n<!-- stop: x -->\n",
    ],
)
def test_a_guide_that_is_wrong_fails(tmp_path: Path, text: str) -> None:
    with pytest.raises(WalkError):
        walk(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "<!-- run: x -->\n```\n```\n",
        "<!-- file: x -->\nwords\n",
        "<!-- file: x -->\n",
        "```console\n$ true\n",
        "```console\nout\n```\n",
    ],
)
def test_marks_and_blocks_that_are_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"guide\.md"):
        walk(tmp_path, text)


def test_the_walk_goes_on_after_a_pause(tmp_path: Path) -> None:
    made = Walk(tmp_path, environment={"PATH": "/usr/bin:/bin"}, replaced={}, stages={"s": (tmp_path / "s").touch})
    steps = made.walk(guide(tmp_path, "<!-- pause -->\n<!-- stage: s -->\n"))
    next(steps)
    assert not (tmp_path / "s").exists()
    assert next(steps, None) is None
    assert (tmp_path / "s").exists()


def test_shown_lines_are_looked_for_in_their_order() -> None:
    output = "│ first  │ 1.25 │\n├────┤\nsecond\n"
    assert missing_line(("first ...", "second"), output) is None
    assert missing_line(("first 1.25", "..."), output) is None
    assert missing_line(("second", "first"), output) == "first"
    assert missing_line(("first ... 1.26",), output) == "first ... 1.26"


@given(st.text(alphabet="ab.*([$\\", min_size=1, max_size=12))
def test_a_shown_line_is_text_and_no_pattern(line: str) -> None:
    if set(line) == {"."}:
        return
    assert missing_line((line,), f"x {line} y") is None
    assert missing_line(("q" + line,), line) == "q" + line


_TEXTS = st.text(alphabet='ab "\\', max_size=6)
_KEYS = st.sampled_from(["a", "b", "c"])
_VALUES = st.one_of(st.booleans(), st.integers(-5, 5), _TEXTS, st.lists(_TEXTS, max_size=3))


@given(st.dictionaries(_KEYS, st.one_of(_VALUES, st.dictionaries(_KEYS, _VALUES))))
def test_toml_that_is_written_is_read_again(content: dict[str, object]) -> None:
    assert tomllib.loads(write_toml(content)) == content
