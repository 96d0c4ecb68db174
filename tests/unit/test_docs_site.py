"""The site has every page and the whole public API, pages that the code names exist, and Sphinx stays outside the product."""

from __future__ import annotations

import ast
import re
import tokenize
from pathlib import Path

import pytest

import veilsum
from support.pages import PAGES, ROOT, anchors, read

SITE = ROOT / "deploy" / "site"
SOURCES = sorted(
    file
    for package in ("node", "privacy", "aggregation", "participant", "coordinator", "deploy")
    for file in (ROOT / package).rglob("*.py")
)
_PAGE = re.compile(r"docs/[\w/-]+\.md(?:#(?P<anchor>[\w-]+))?(?:, \"(?P<heading>[^\"]+)\")?")


def navigation() -> list[str]:
    """The pages that the site's configuration lists."""
    tree = ast.parse((SITE / "conf.py").read_text(encoding="utf-8"))
    (value,) = (
        node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "NAVIGATION"
    )
    assert value is not None
    return [page for pages in ast.literal_eval(value).values() for page in pages]


def test_the_navigation_has_every_page_once() -> None:
    listed_by_their_readme = {
        page for page in PAGES if page.parent.name in {"decisions", "runbooks"} and page.stem != "README"
    }
    expected = {*PAGES, *SITE.glob("*.md")} - listed_by_their_readme - {ROOT / "README.md"}
    listed = navigation()
    assert len(listed) == len(set(listed))
    assert {ROOT / f"{page}.md" for page in listed} == expected


def test_the_reference_has_what_is_public() -> None:
    described = re.findall(r"^\.\. auto(?:class|function):: (\w+)$", (SITE / "api.md").read_text(), re.MULTILINE)
    assert sorted(described) == sorted(veilsum.__all__)


def test_what_builds_the_site_is_pinned_and_apart_from_the_product() -> None:
    def names(file: Path) -> dict[str, str]:
        lines = (line.partition("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
        pairs = (line.partition("==") for line in lines if line)
        return {re.sub(r"[-_.]+", "-", name).lower(): version for name, _, version in pairs}

    tools = names(SITE / "requirements.txt")
    assert {"sphinx", "myst-parser", "furo"} <= set(tools)
    assert all(tools.values())
    assert set(tools) & set(names(ROOT / "constraints.txt")) == set()


def leads_somewhere(named: re.Match[str]) -> bool:
    """Whether the page exists and has the heading that stands beside its name."""
    page = ROOT / re.split("[#,]", named[0])[0]
    if not page.exists():
        return False
    if named["anchor"] and named["anchor"] not in anchors(read(page)):
        return False
    return not named["heading"] or bool(re.search(rf"^#+ +{re.escape(named['heading'])}", read(page), re.MULTILINE))


@pytest.mark.parametrize("package", sorted({file.relative_to(ROOT).parts[0] for file in SOURCES}))
def test_pages_that_the_code_names_exist(package: str) -> None:
    """In messages, docstrings and comments, with the heading where one is named."""
    absent = []
    for file in SOURCES:
        if file.relative_to(ROOT).parts[0] == package:
            with tokenize.open(file) as source:
                words = " ".join(source.read().split())
            absent += [
                f"{file.relative_to(ROOT)}: {match[0]}" for match in _PAGE.finditer(words) if not leads_somewhere(match)
            ]
    assert absent == []
