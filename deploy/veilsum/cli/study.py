"""The ``veilsum study`` commands: an analyst's way from a study.toml to a result."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilsum.cli.display import print_fault, print_result, print_study, print_verified
from veilsum.progress import follow
from veilsum_node.errors import Misuse
from veilsum_node.process.console import JsonOption, moment, print_fields, print_json, print_line, print_rows
from veilsum_node.process.memory import loading

if TYPE_CHECKING:
    from veilsum.compile import StudyRequest
    from veilsum.plan import StudyPlan
    from veilsum.remote import Remote, StudyInfo
    from veilsum_node.identity import Credentials

app = typer.Typer(no_args_is_help=True, add_completion=False)

CoordinatorOption = Annotated[
    str | None, typer.Option("--coordinator", envvar="VEILSUM_COORDINATOR", help="host:port; default: that of analyst.toml.")
]
IdentityOption = Annotated[
    Path | None,
    typer.Option("--identity", envvar="VEILSUM_IDENTITY", help="Your identity directory; default: that of analyst.toml."),
]
StudyFile = Annotated[Path, typer.Argument(metavar="STUDY.TOML", help="The study to ask for.")]
StudyId = Annotated[str, typer.Argument(metavar="ID", help="The study's ID, or its first digits (at least 4).")]


@app.callback()
def study() -> None:
    """Submit studies, watch them, fetch their results."""
    from veilsum_coordinator.results.reproduction import choose_common_loops

    choose_common_loops()  # results are verified by computing them again


@app.command()
def plan(
    file: StudyFile,
    participants: Annotated[
        int | None, typer.Option("--participants", min=2, max=1024, help="Plan for this many sites, without any connection.")
    ] = None,
    error: Annotated[
        float | None, typer.Option("--error", help="Show the epsilon needed for this relative error; default 0.1 (10%).")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show every quantity and every site.")] = False,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a study would tell and what it would cost each participant; nothing is signed or submitted."""
    if error is not None and not 0 < error <= 1:
        raise Misuse("An error is a share of the expected size, above 0 and at most 1.", "For example --error 0.1.")
    request = _load(file)
    if participants is not None:
        with loading():
            from veilsum.drafts import plan_offline

        planned = plan_offline(request, participants, error)
    else:
        with _connected(coordinator, identity) as (remote, credentials):
            planned = _plan(request, remote, credentials, error, as_json=as_json)
    if as_json:
        print_json(planned.to_json())
    else:
        from veilsum.cli.planned import print_plan  # with what a study's dossier says, which no other command tells

        print_plan(planned, everything=everything)


@app.command()
def submit(
    file: StudyFile,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Watch the study until it is over; status 1 unless it finished.")
    ] = False,
    results: Annotated[Path | None, typer.Option("--results", help="Wait, then fetch the result into this directory.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compile a study for the connected participants (or those it names), show what it asks, sign and submit it.

    With --json: one object per line; what it asks first, then its states and its result if they are waited for.
    """
    with _connected(coordinator, identity) as (remote, credentials):
        planned = _plan(_load(file), remote, credentials, as_json=as_json)
        if not as_json:
            from veilsum.cli.planned import print_plan

            print_plan(planned)
        key = remote.submit(planned.study, credentials)
        if as_json:
            about = {"study": key.hex(), "name": planned.study.name, "verdict": planned.verdict.value}
            print_json({**about, "cost": planned.cost.to_json()}, compact=True)
        else:
            print_line(f"Submitted {key.hex()}")
        if not (wait or results):
            return
        _require_finished(_followed(remote, key, as_json=as_json), as_json=as_json)
        if results is not None:
            _fetch(remote, credentials, key, results, as_json=as_json)


@app.command("list")
def list_studies(coordinator: CoordinatorOption = None, identity: IdentityOption = None, as_json: JsonOption = False) -> None:
    """List your studies; an operator sees everybody's."""
    with _connected(coordinator, identity) as (remote, _):
        studies = remote.list()
    if as_json:
        print_json([info.to_json() for info in studies])
        return
    rows = [
        {
            "study": info.study[:12],
            "name": info.name,
            "method": info.method,
            "analyst": info.analyst,
            "submitted": moment(info.submitted),
            "phase": info.phase,
            "progress": f"{info.progress:.0%}",
        }
        for info in studies
    ]
    print_rows(rows, title="Studies", as_json=False, empty="There are no studies.")


@app.command()
def show(
    study_id: StudyId, coordinator: CoordinatorOption = None, identity: IdentityOption = None, as_json: JsonOption = False
) -> None:
    """Show a study's state: who enrolled, who refused and why, its rounds."""
    with _connected(coordinator, identity) as (remote, _):
        print_study(remote.show(remote.find(study_id)), as_json=as_json)


@app.command()
def watch(
    study_id: StudyId, coordinator: CoordinatorOption = None, identity: IdentityOption = None, as_json: JsonOption = False
) -> None:
    """Follow a study until it is over; status 1 unless it finished.

    With --json: one object per line at every change, of a study with many rounds once a second.
    """
    with _connected(coordinator, identity) as (remote, _):
        _require_finished(_followed(remote, remote.find(study_id), as_json=as_json), as_json=as_json)


@app.command()
def abort(
    study_id: StudyId, coordinator: CoordinatorOption = None, identity: IdentityOption = None, as_json: JsonOption = False
) -> None:
    """Stop a study; what it has cost so far stays charged."""
    with _connected(coordinator, identity) as (remote, _):
        print_study(remote.abort(remote.find(study_id)), as_json=as_json)


@app.command()
def result(
    study_id: StudyId,
    out: Annotated[Path, typer.Option("--out", help="Directory for the result's files.")],
    proof: Annotated[
        bool, typer.Option("--proof/--no-proof", help="Fetch the result's proof as well, and verify the result by it.")
    ] = True,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch a finished study's result and verify it by its proof; status 1 if the study failed or the result is not proven."""
    with _connected(coordinator, identity) as (remote, credentials):
        key = remote.find(study_id)
        info = remote.show(key)
        if info.over:
            _require_finished(info, as_json=as_json)
        _fetch(remote, credentials, key, out, as_json=as_json, proof=proof)


@app.command()
def verify(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="Directory of a result with its proof.")],
    authority: Annotated[
        Path | None,
        typer.Option("--authority", help="The federation's certificate; by default that of your identity.", metavar="PEM"),
    ] = None,
    uses: Annotated[
        Path | None,
        typer.Option("--uses", help="Folder of results that the study builds on, if it evaluates a released model."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="Relative difference of numbers to accept where a machine rounds differently.")
    ] = 0.0,
    identity: IdentityOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a result by its proof, offline: every signature, context, receipt and consent, and every number.

    Numbers are computed again. Status 1 names the first thing that does not hold; status 3 says that all that was signed
    holds, and that this version does not repeat the numbers, which another version made.
    """
    from veilsum.access import resolve_identity
    from veilsum.replay import LARGEST_TOLERANCE
    from veilsum.verification import RepetitionFault, verify_result
    from veilsum_node.identity.certificate import load_authority
    from veilsum_node.identity.tls import AUTHORITY_FILE
    from veilsum_privacy.results.release_check import ProofFault

    if not 0 <= tolerance <= LARGEST_TOLERANCE:
        raise Misuse(f"A tolerance lies between 0 and {LARGEST_TOLERANCE:g}.", "For example --tolerance 1e-9.")
    if not result.is_dir():
        raise Misuse(f"{result} is not a directory.", "Name the directory that `veilsum study result --out` wrote.")
    certificate = load_authority(authority or resolve_identity(identity) / AUTHORITY_FILE)
    try:
        found = verify_result(result, certificate, uses=uses, tolerance=tolerance)
    except ProofFault as fault:
        print_fault(fault, result, as_json=as_json)
        raise typer.Exit(NOT_REPEATED if isinstance(fault, RepetitionFault) else 1) from fault
    print_verified(found, result, as_json=as_json)


@app.command()
def export(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="Directory of a result.")],
    out: Annotated[Path, typer.Option("--out", help="Directory for the files.")],
    formats: Annotated[
        str,
        typer.Option("--formats", help="Formats, with commas: csv, html, latex, word, text, svg, png, onnx, xgboost, peft."),
    ] = "csv,html",
    synthetic: Annotated[
        str,
        typer.Option(
            "--synthetic",
            metavar="MODEL",
            help="Synthetic records of the result's tree of pairs, or of a graph of many pairs (veilsum[synthetic]).",
        ),
    ] = "tree",
    nonnormal: Annotated[
        str, typer.Option("--nonnormal", metavar="COLUMNS", help="Numbers shown by median and quartiles alone, with commas.")
    ] = "",
    site: Annotated[str | None, typer.Option("--site", help="The site whose alignment the ONNX file applies.")] = None,
    from_features: Annotated[
        bool, typer.Option("--from-features", help="Begin an ONNX file behind the encoder: for a frozen program of your own.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there with other content.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a result's tables and pictures for papers and slides, or its model for other programs.

    Every file lies in --out and is named for its table. Pictures need matplotlib, veilsum[plots]; ONNX files need onnx,
    veilsum[onnx].
    """
    from veilsum.exports import export_result
    from veilsum.provenance import signed_study, stated_cost, stated_study
    from veilsum_privacy.results.result import load_result

    names, content = [name.strip() for name in formats.split(",") if name.strip()], load_result(result)
    about = {**stated_study(result), **stated_cost(result)}
    medians = [name.strip() for name in nonnormal.split(",") if name.strip()]
    files = export_result(
        content, out, names, synthetic, about=about, site=site, from_features=from_features, replace=force,
        study=signed_study(result), nonnormal=medians,
    )  # fmt: skip
    print_fields({"result": str(result), "files": [str(file) for file in files]}, title="Exported", as_json=as_json)


@app.command()
def mlflow(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="Directory of a result, or of a checkpoint.")],
    tracking_uri: Annotated[
        str,
        typer.Option(
            "--tracking-uri", envvar="MLFLOW_TRACKING_URI", help="The server's address, such as http://127.0.0.1:5000."
        ),
    ],
    experiment: Annotated[
        str, typer.Option("--experiment", envvar="MLFLOW_EXPERIMENT_NAME", help="Its name; made where there is none.")
    ],
    dossier: Annotated[str | None, typer.Option("--dossier", metavar="URL", help="A dossier that the run links to.")] = None,
    proof: Annotated[bool, typer.Option("--proof", help="Also send the proof, which names every site of the roster.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a result to an MLflow tracking server, once for each study; needs the extra `mlflow`."""
    from veilsum.mlflow_run import log_result
    from veilsum.provenance import stated_cost, stated_study

    about = {**stated_study(result), **stated_cost(result)}
    run = log_result(result, about, tracking_uri, experiment, dossier=dossier, proof=proof)
    print_fields({"result": str(result), "experiment": experiment, "run": run}, title="Tracked", as_json=as_json)


@app.command()
def checkpoint(
    study_id: StudyId,
    out: Annotated[Path, typer.Option("--out", help="Directory for the checkpoint's files.")],
    number: Annotated[int | None, typer.Option("--round", min=1, help="After which round; by default the newest.")] = None,
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch an intermediate model that a study kept, even if it failed. `veilsum study show` lists them."""
    with _connected(coordinator, identity) as (remote, _):
        found, kept = remote.fetch_checkpoint(remote.find(study_id), out, number)
    if not as_json:
        print_line(f"Checkpoint after round {kept}")
    print_result(found, out, as_json=as_json)


def _plan(
    request: StudyRequest, remote: Remote, credentials: Credentials, error: float | None = None, *, as_json: bool
) -> StudyPlan:
    from veilsum.drafts import absences, plan_connected

    planned = plan_connected(request, remote, credentials.federation_id, error)
    for line in () if as_json else absences(planned.away, planned.left_out):
        print_line(line)
    return planned.plan


def _fetch(remote: Remote, credentials: Credentials, key: bytes, out: Path, *, as_json: bool, proof: bool = True) -> None:
    """Fetch a result, show it, and verify it by its proof; leave with status 1 if it is not proven."""
    from veilsum.verification import look_at

    fetched = remote.fetch(key, out, proof=proof)
    word = look_at(out, credentials.authority, key) if proof else None
    print_result(fetched, out, as_json=as_json, proof=word)
    if word is not None and word.verified is None:
        raise typer.Exit(1)


@contextmanager
def _connected(coordinator: str | None, identity: Path | None) -> Iterator[tuple[Remote, Credentials]]:
    from veilsum.access import resolve_access
    from veilsum.remote import connect

    access = resolve_access(coordinator, identity)
    now = int(time.time())
    credentials = access.credentials(now)
    with connect(access.route, credentials, access.identity, now) as remote:
        yield remote, credentials


def _load(file: Path) -> StudyRequest:
    with loading():
        from veilsum.compile import load_study_request

    return load_study_request(file)


NOT_REPEATED = 3
"""Exit status of ``verify``: what was signed holds, and another version made numbers that this one does not."""


def _followed(remote: Remote, key: bytes, *, as_json: bool) -> StudyInfo:
    try:
        return follow(remote.watch(key), as_json=as_json)
    except KeyboardInterrupt:
        typer.echo(f"Interrupted. The study goes on: `veilsum study watch {key.hex()[:12]}` takes it up again.", err=True)
        raise


def _require_finished(info: StudyInfo, *, as_json: bool) -> None:
    """Leave with status 1, the reason and the refusals, unless the study finished."""
    if info.phase == "finished":
        return
    if not as_json:
        print_study(info, as_json=False)
    raise typer.Exit(1)
