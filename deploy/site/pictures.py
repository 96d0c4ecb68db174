"""Pictures of the project's own pages, by Chromium, of what `make demo` left.

``.venv/bin/python deploy/site/pictures.py veilsum-demo`` writes docs/pictures/dossier.png, the first page of a hospital's
dossier, and docs/pictures/console.png, its console.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
VEILSUM = Path(sys.executable).with_name("veilsum")
SITE = "north"


def dossier(page: Page, config: Path) -> None:
    """Picture of the page that `ledger report` writes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "dossier.html"
        command = [VEILSUM, "ledger", "report", "--config", config, "--out", file, "--json-out", file.with_suffix(".json")]
        subprocess.run(command, check=True)  # noqa: S603 - our own program
        page.goto(file.as_uri())
        page.screenshot(path=PICTURES / "dossier.png")


def console(page: Page, config: Path) -> None:
    """Picture of the console's first page, as an officer sees it."""
    command = [VEILSUM, "participant", "console", "--config", config, "--as", "Olga Maier=officer"]
    with subprocess.Popen(  # noqa: S603 - our own program
        [*command, "--listen", "127.0.0.1:0", "--records-in-reach"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            link = next(found[0] for line in process.stdout or () if (found := re.search(r"http://\S+/enter\?\S+", line)))
            page.goto(link)
            page.get_by_role("button", name="Log in as").click()
            page.wait_for_url("**/")
            page.screenshot(path=PICTURES / "console.png", clip={"x": 0, "y": 0, "width": 1200, "height": 650})
        finally:
            process.terminate()


def main(demo: Path) -> None:
    """Make them."""
    config = demo / "participants" / SITE / "participant.toml"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        dossier(page, config)
        console(page, config)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
