"""Links between the pages resolve, the tests and files that they name exist, and every page can be found from the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.pages import PAGES, ROOT, anchors, links, read

_TEST = re.compile(r"(?P<file>tests/[\w/]+\.py)::(?P<name>test_\w+)")
_PATH = re.compile(r"`(?P<path>(?:deploy|docs|node|tests|participant|privacy|coordinator|proto|aggregation)/[\w./-]+)`")


def broken(page: Path, target: str, text: str) -> str | None:
    """Why a link of a page leads nowhere; None if it leads somewhere. Links out of the repository are not followed."""
    if re.match(r"[a-z]+:", target):
        return None
    place, _, anchor = target.partition("#")
    file = page if not place else (page.parent / place).resolve()
    if place and not file.exists():
        return f"there is no {place}"
    if not file.is_relative_to(ROOT):
        return f"{place} lies outside the repository"
    if anchor and file.suffix == ".md" and anchor not in anchors(text if not place else read(file)):
        return f"{place or page.name} has no heading {anchor}"
    return None


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = read(page)
    assert [f"{target}: {why}" for target in links(text) if (why := broken(page, target, text))] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_named_tests_and_files_exist(page: Path) -> None:
    text = read(page)
    absent = []
    for match in _TEST.finditer(text):
        file = ROOT / match["file"]
        if not file.exists() or not re.search(
            rf"^(?:async )?def {match['name']}\(", file.read_text(encoding="utf-8"), re.MULTILINE
        ):
            absent.append(match[0])
    paths = (match["path"] for match in _PATH.finditer(text))
    absent += [path for path in paths if not (ROOT / path.rstrip(".")).exists() and not list(ROOT.glob(path))]
    assert absent == []


def test_every_page_is_found_from_the_readme() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or not page.exists():
            continue
        seen.add(page)
        targets = (target.partition("#")[0] for target in links(read(page)) if not re.match(r"[a-z]+:", target))
        waiting += [(page.parent / target).resolve() for target in targets if target.endswith(".md")]
    apart = {ROOT / "CHANGELOG.md"}
    assert [name_of(page) for page in PAGES if page not in seen | apart] == []


def test_the_check_itself_finds_what_is_wrong(tmp_path: Path) -> None:
    text = "# A page\n\n## Two `words`, or more\n\n[a](#two-words-or-more) [b](#three) [c](no.md) `[d](none.md)`\n"
    text += "\n```\n[e](none.md)\n```\n"
    page = ROOT / "docs" / "imagined.md"
    assert links(text) == ["#two-words-or-more", "#three", "no.md"]
    assert [broken(page, target, text) is None for target in links(text)] == [True, False, False]
    assert broken(page, "../README.md#try-it", text) is None
    assert broken(page, "../README.md#no-such-heading", text) is not None
    assert broken(page, "../../outside.md", text) is not None
