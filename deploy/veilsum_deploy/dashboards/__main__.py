"""``python -m veilsum_deploy.dashboards``: write the dashboards, check their queries, draw them."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from veilsum_deploy.dashboards.browser import find_browser
from veilsum_deploy.dashboards.checking import check
from veilsum_deploy.dashboards.drawing import draw
from veilsum_deploy.dashboards.filling import Window
from veilsum_deploy.dashboards.prometheus import Prometheus, now
from veilsum_deploy.dashboards.reading import FOLDER, read_boards
from veilsum_node.errors import ConfigurationError, VeilsumError
from veilsum_node.process.console import JsonOption, print_json, print_line, report_error

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Grafana's dashboards of veilsum.")

UrlOption = Annotated[str, typer.Option("--prometheus", help="Prometheus' address, for example http://localhost:9090.")]
RangeOption = Annotated[int, typer.Option("--minutes", min=1, help="How far back from now.")]
ScrapeOption = Annotated[float, typer.Option("--scrape", min=0.1, help="Seconds between two scrapes.")]
FolderOption = Annotated[Path, typer.Option("--dashboards", help="The written dashboards.")]


@app.command("write")
def write_command(
    out: Annotated[Path, typer.Option("--out", help="Where the JSON files go.")] = FOLDER,
    runbooks: Annotated[str, typer.Option("--runbooks", help="URL that docs/runbooks is served under.")] = "",
) -> None:
    """Write the dashboards' JSON files."""
    try:
        from veilsum_deploy.dashboards.builders import RUNBOOKS
        from veilsum_deploy.dashboards.writing import write
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{error.name} is not installed.", "Run make venv: it is a tool of development.") from error
    for path in write(out, runbooks.rstrip("/") or RUNBOOKS):
        print_line(str(path))


@app.command("check")
def check_command(
    prometheus: UrlOption,
    minutes: RangeOption = 15,
    scrape: ScrapeOption = 15.0,
    dashboards: FolderOption = FOLDER,
    as_json: JsonOption = False,
) -> None:
    """Run every query of every panel; status 1 if one returns nothing."""
    end = now()
    answers = check(read_boards(dashboards), Prometheus(prometheus), Window(end - 60 * minutes, end, scrape))
    empty = [answer for answer in answers if not answer.series]
    if as_json:
        print_json({"queries": len(answers), "empty": [vars(answer) for answer in empty]})
    else:
        for answer in empty:
            print_line(f"{answer.board} / {answer.panel}: {answer.fault or 'no data'}: {answer.expr}")
        print_line(f"{len(answers)} queries, {len(empty)} without data")
    raise typer.Exit(1 if empty else 0)


@app.command("draw")
def draw_command(
    prometheus: UrlOption,
    out: Annotated[Path, typer.Option("--out", help="Folder of the pages and pictures.")],
    minutes: RangeOption = 60,
    scrape: ScrapeOption = 15.0,
    site: Annotated[str, typer.Option("--site", help="Site of the dashboard of one participant; else the first.")] = "",
    dashboards: FolderOption = FOLDER,
) -> None:
    """Draw every dashboard from Prometheus' answers: HTML, and PNG if a browser is installed."""
    end = now()
    window = Window(end - 60 * minutes, end, scrape)
    chosen, browser = {"site": site} if site else {}, find_browser()
    for path in draw(read_boards(dashboards), Prometheus(prometheus), window, out, chosen, browser):
        print_line(str(path))
    if browser is None:
        print_line("No browser is installed, so there are pages and no pictures.")


@app.command("pictures")
def pictures_command(
    out: Annotated[Path, typer.Option("--out", help="Folder of the pictures.")] = Path("docs/pictures"),
) -> None:
    """Run studies under a Prometheus and write pictures of the dashboards and of a dossier."""
    from veilsum_deploy.dashboards.pictures import take

    with tempfile.TemporaryDirectory(prefix="veilsum-pictures-") as directory:
        for path in take(Path(directory) / "federation", out, print_line):
            print_line(str(path))


def main() -> None:
    """Run a command; typed errors become a message and status 2."""
    try:
        app(prog_name="python -m veilsum_deploy.dashboards")
    except VeilsumError as error:
        sys.exit(report_error(error, as_json="--json" in sys.argv))


if __name__ == "__main__":
    main()
