"""The site of `make docs` is whole, asks nothing of a network, and is searched by a browser that reads it from a disk."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from support.browsing import running_browser
from support.pages import PAGES, ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]


_EXCERPT = re.compile("Access to fetch at 'file:|Failed to fetch|net::ERR_FAILED$")
"""From a disk, a browser lets no page read another: a search then shows titles without the excerpts that a server gives."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("docs") / "site"
    command = ["make", "-o", ".venv/.installed", "-o", ".venv/.runtime", "--no-print-directory", "docs", f"SITE={built}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return built


@pytest.fixture
def page(site: Path) -> Iterator[Page]:
    """A page whose requests and faults are checked when the test is over."""
    asked: list[str] = []
    faults: list[str] = []
    with running_browser() as browser:
        context = browser.new_context()
        context.set_offline(True)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        yield page
        assert asked
        assert [url for url in asked if not url.startswith(("file://", "data:", "blob:"))] == []
        assert [fault for fault in faults if not _EXCERPT.search(fault)] == []


def test_every_page_is_on_the_site(site: Path) -> None:
    pages = [page.relative_to(ROOT).with_suffix(".html") for page in PAGES]
    assert [str(page) for page in [*pages, Path("index.html")] if not (site / page).exists()] == []


def test_the_front_page_leads_to_the_readme(site: Path, page: Page) -> None:
    page.goto((site / "index.html").as_uri())
    page.wait_for_url("**/README.html")
    assert page.title().startswith("veilsum")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("clipping", "docs/methods.html"),
        ("open_result", "deploy/site/api.html"),
        ("texts", "deploy/site/commands.html"),
        ("subtraction", "README.html"),
    ],
)
def test_a_search_finds_pages_and_names(site: Path, page: Page, words: str, found: str) -> None:
    page.goto(f"{(site / 'search.html').as_uri()}?q={words}")
    page.wait_for_selector(f"#search-results li a[href*='{found}']")


def test_the_reference_describes_methods_and_commands(site: Path, page: Page) -> None:
    page.goto((site / "deploy" / "site" / "api.html").as_uri())
    assert page.locator("dt[id='veilsum.Dataset.mean']").count() == 1
    assert "Means and standard deviations" in page.inner_text("dl:has(> dt[id='veilsum.Dataset.mean']) > dd")
    page.goto((site / "deploy" / "site" / "commands.html").as_uri())
    assert "--texts" in page.inner_text("section#veilsum-participant-check")


def test_diagrams_are_drawn(site: Path, page: Page) -> None:
    if not (ROOT / ".tools" / "docs" / "mermaid.min.js").exists():
        pytest.skip("the site was built without npm, so diagrams are text")
    page.goto((site / "docs" / "architecture.html").as_uri())
    page.wait_for_selector("pre.mermaid svg")
    assert "mathematics on released sums" in (page.text_content("pre.mermaid svg") or "")
