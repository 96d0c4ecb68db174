"""A real browser: Debian's Chromium, driven by Playwright's package; without a window and without what it downloads itself."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from support.tools import give_up

ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")

LOOKS = ((1280, "light"), (360, "dark"))
"""Widths of windows in pixels and schemes of colours: what is wrong depends on the one or the other."""


@contextmanager
def running_browser(*more: str) -> Iterator[Browser]:
    """Chromium, with further arguments; the test is skipped where it is absent, or fails where ``VEILSUM_REQUIRE_TOOLS=1``."""
    program = shutil.which("chromium")
    if program is None:
        give_up("the program chromium is not on PATH: install Debian's package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*ARGUMENTS, *more])
        try:
            yield browser
        finally:
            browser.close()


def opened(browser: Browser, link: str) -> Page:
    """Somebody who follows a one-time link, in a window of their own; its ``alarms`` are dialogs and faults on its console."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    alarms: list[str] = []
    page.on("dialog", lambda dialog: (alarms.append(dialog.message), dialog.dismiss())[0])
    page.on("pageerror", lambda error: alarms.append(str(error)))
    page.on("console", lambda message: alarms.append(message.text) if message.type == "error" else None)
    page.alarms = alarms  # type: ignore[attr-defined]
    page.goto(link)
    page.get_by_role("button", name="Log in as").click()
    page.wait_for_url("**/")
    return page


def faults(page: Page) -> list[str]:
    """What axe-core finds wrong with a page at any width and scheme, and where it is wider than its window."""
    found: list[str] = []
    axe = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    page.evaluate(axe)
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        told: Any = page.evaluate("axe.run()")
        found += [f"{page.url} {width} {scheme}: {item['id']}: {item['help']}" for item in told["violations"]]
    return found + too_wide(page)


def too_wide(page: Page) -> list[str]:
    """At which widths a page is wider than its window."""
    found = []
    for width, _ in reversed(LOOKS):
        page.set_viewport_size({"width": width, "height": 900})
        if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
            found.append(f"{page.url} {width}: wider than the window")
    return found
