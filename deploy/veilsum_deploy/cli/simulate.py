"""The ``veilsum simulate`` command: one study on simulated sites, or a whole evaluation of cells and seeds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from veilsum_deploy.cli.display import show_progress
from veilsum_deploy.collections import COLLECTIONS
from veilsum_deploy.datasets import PACKAGED
from veilsum_deploy.simulation.baseline_names import BASELINES, parse_baselines
from veilsum_deploy.simulation.deal import Setting
from veilsum_deploy.simulation.engines import Engine, ProcessEngine, RayEngine, SerialEngine, cores, running
from veilsum_deploy.simulation.jobs import load_source
from veilsum_deploy.simulation.report import save, summarise
from veilsum_deploy.simulation.run_store import RunStore
from veilsum_deploy.simulation.runs import simulate
from veilsum_deploy.simulation.scores import NAMES
from veilsum_deploy.simulation.study import SimulatedRuns, Simulation, draft_of, read_content, with_stations
from veilsum_deploy.simulation.sweep import Cell, Source, Sweep, parse_axis, parse_baseline
from veilsum_node.config import read_toml
from veilsum_node.errors import Misuse
from veilsum_node.process.console import DialectOption, JsonOption, print_fields, print_json, print_line, print_rows
from veilsum_privacy.training import device

EXIT_INTERRUPTED = 130

app = typer.Typer(add_completion=False)

_PARTITION = (
    "Split of records; by default iid, or domains where --data has sites of its own. iid: even and mixed. uneven: site i has"
    " a share in proportion to 1/i. dirichlet:ALPHA: each class is split by a Dirichlet draw over the sites. shards:N: N"
    " classes per site. domains: each site has records of one domain of the collection or of --data; one site a domain, or its"
    " own sites, or with --sites a multiple of the number of domains, which deals each domain's records out evenly."
    " domains+dirichlet:ALPHA: then for each class one Dirichlet draw over the sites, which sums to 1,"
    " is the share of its records of the class that a site keeps; no class is forced on a site."
)
_VARY = (
    "Sweep: a key of the study by its dotted path, and its values; repeat it for all combinations. none as a privacy.epsilon"
    " stands for noise = none, default or without as any value for leaving the key out. partition, sites, limit, cap and"
    " leave_out vary too, leave_out=each over every domain in turn; study=NAME,... takes method and parameters of other study"
    " files beside the study."
)


@app.command()
def simulate_study(
    study: Annotated[Path, typer.Argument(help="The study.toml; with --dataset or --collection it may leave out the schema.")],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="CSV, Parquet or npz file with all records; a folder with one such file a site; or a folder of folders, one a"
            " domain, each with one such file a site.",
        ),
    ] = None,
    site_column: Annotated[
        str | None, typer.Option("--site-column", help="Column of --data that names the site of each record.")
    ] = None,
    domain_column: Annotated[
        str | None, typer.Option("--domain-column", help="Column of --data that names the domain of each record.")
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option("--subject", help="Column that tells whose record each is, for studies whose unit is the subject."),
    ] = None,
    dialect: DialectOption = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help=f"A packaged data set: {', '.join(PACKAGED)}.")] = None,
    collection: Annotated[
        str | None,
        typer.Option(
            "--collection",
            metavar="NAME=FOLDER",
            help=f"Real data of several domains in a folder of yours: {', '.join(COLLECTIONS)}. Nothing is downloaded.",
        ),
    ] = None,
    encoder: Annotated[
        Path | None, typer.Option("--encoder", help="Result of the method pca; in place of the study's own encoder.")
    ] = None,
    program: Annotated[
        Path | None, typer.Option("--program", help="File of the frozen program, for a study whose encoder is one.")
    ] = None,
    sites: Annotated[
        int | None, typer.Option("--sites", min=2, max=1024, help="Number of simulated sites; 4, or one per domain.")
    ] = None,
    partition: Annotated[str | None, typer.Option("--partition", help=_PARTITION)] = None,
    leave_out: Annotated[
        str | None,
        typer.Option(
            "--leave-out", metavar="DOMAIN", help="A domain that no site has: it is only tested on, with all its records."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Most training records per site, drawn at random before the skew.")
    ] = None,
    cap: Annotated[
        int | None, typer.Option("--cap", min=1, help="Most training records per site, drawn at random after the skew.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed for splitting records; noise is never seeded.")] = 0,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Runs, each with fresh noise.")] = 1,
    holdout: Annotated[
        float | None,
        typer.Option(
            "--holdout",
            help="Share of each class to test a classifier on, drawn by the seed, where the data have no test records of their"
            " own: 0.3 for a collection and in a sweep, else 0.",
        ),
    ] = None,
    split: Annotated[
        int | None,
        typer.Option("--split", min=0, help="Seed of the held-out records, one for all runs; by default each run's own."),
    ] = None,
    encryption: Annotated[
        bool | None,
        typer.Option("--encryption/--no-encryption", help="Run the whole protocol; default for one study, not for a sweep."),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="KEY=V1,V2,...",
            help=_VARY,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=1, help="Sweep: number of seeds, from --seed on; every cell runs on the same splits."),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", metavar="KEY=V", help="Sweep: gains are over the cell with this value, paired by seed."),
    ] = None,
    baselines: Annotated[
        str | None,
        typer.Option(
            "--baselines",
            metavar="NAME,...",
            help=f"Baselines computed on the same test records: {', '.join(BASELINES)}, trained for both of that"
            " name, or none. By default alone and pooled, and all of them for the methods fedsgd and fedavg.",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", help="Where runs, or the sites of one run, are computed: local or ray.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option("--address", help="Address of a Ray cluster, host:port or auto; without it one is started here."),
    ] = None,
    device_name: Annotated[
        str,
        typer.Option("--device", help="Where networks are computed: cpu, cuda:N, or auto for a GPU where torch finds one."),
    ] = "cpu",
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", min=1, help="Processes at a time; by default all cores for a sweep, and 1 for one study."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Resume from the runs or rounds saved in --out."),
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="New directory for results and tables.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Try a study on simulated sites in this process, with the real noise and the real encryption.

    With --vary or --seeds a whole evaluation runs, on all cores and without encryption: every combination of values for every
    seed, beside each site alone and pooled records. --out gets each run, the table with paired gains, and plots.
    """
    source = _source(study, data, dataset, collection, site_column, domain_column, subject, tuple(dialect or ()))
    partition = partition or ("domains" if source.kind == "sites" else "iid")
    if subject is not None and not partition.startswith("domains"):
        raise Misuse(
            "Records that are dealt out at random would scatter a person's over sites.",
            "Leave out --partition, and name the sites by --site-column or a folder.",
        )
    sweeping = bool(vary) or seeds is not None
    if not sweeping and baseline is not None:
        raise Misuse("--baseline belongs to a sweep.", "State --vary or --seeds too.")
    if resume and out is None:
        raise Misuse("--resume needs --out.", "Name the folder to resume from.")
    if engine == "ray" and device_name != device.CPU:
        raise Misuse("--device belongs to processes of this machine.", "Leave it out with --engine ray.")
    place = Place(engine, address, jobs, device.choose(device_name))
    if holdout is None and not sweeping and source.kind != "collection":
        holdout = 0.0
    setting = Setting(partition, sites, limit, cap, holdout, split, leave_out)
    axes = tuple(parse_axis(text) for text in vary or ())
    pair = None if baseline is None else parse_baseline(baseline, axes)
    numbers = tuple(range(seed, seed + (seeds or 1)))
    sweep = Sweep(read_content(study, encoder), study.parent, source, setting, axes, numbers, pair, program, baselines)
    if sweeping:
        _sweep(sweep, encryption, repeat, place, out, resume, as_json)
    else:
        _study(study, sweep, repeat, encryption is not False, place, out, resume, as_json)


def make_engine(name: str, workers: int, address: str | None = None, on: str = device.CPU) -> Engine:
    """An engine by its name: ``local`` or ``ray``; ``workers`` 0 stands for all cores; networks are computed ``on`` a device.

    Raises:
        Misuse: no such engine, an address for ``local``, or Ray is not installed.
        StateError: the Ray cluster cannot be reached.
    """
    if name == "ray":
        return RayEngine(address, workers or None)
    if name != "local":
        raise Misuse(f"There is no engine {name!r}.", "Use local or ray.")
    if address is not None:
        raise Misuse("--address belongs to a Ray cluster.", "State --engine ray too.")
    count = workers or cores()
    return SerialEngine() if count == 1 else ProcessEngine(count, on)


def _source(
    study: Path,
    data: Path | None,
    dataset: str | None,
    collection: str | None,
    site_column: str | None,
    domain_column: str | None,
    subject: str | None,
    dialect: tuple[str, ...],
) -> Source:
    if sum(item is not None for item in (data, dataset, collection)) != 1:
        raise Misuse("State either --data or --dataset or --collection.", f"Packaged data sets: {', '.join(PACKAGED)}.")
    if data is not None:
        name = str(read_toml(study).get("dataset", data.stem))
        own = data.is_dir() or site_column is not None or domain_column is not None
        return Source("sites" if own else "file", name, data, site_column, subject, domain_column, dialect)
    if dialect or any(column is not None for column in (site_column, domain_column, subject)):
        told = "--site-column, --domain-column, --subject and --dialect belong to records of your own."
        raise Misuse(told, "Name them with --data.")
    if dataset is not None:
        return Source("packaged", dataset)
    name, equals, folder = str(collection).partition("=")
    if not equals or not folder:
        raise Misuse(f"--collection {collection} does not name a folder.", "Use --collection NAME=FOLDER.")
    return Source("collection", name, Path(folder))


@dataclass(frozen=True)
class Place:
    """Where it is computed: engine, address of a cluster, how many processes, None for the default, and their device."""

    engine: str
    address: str | None
    jobs: int | None
    device: str


def _study(
    study: Path, one: Sweep, repeat: int, encryption: bool, place: Place, out: Path | None, resume: bool, as_json: bool
) -> None:
    """One study: ``one`` is a sweep of a single cell."""
    loaded = load_source(one, str(study))
    content = with_stations(one.content, loaded, one.setting)
    draft = draft_of(content, one.base, loaded.schema, source=str(study), program=one.program)
    if draft.schema != loaded.schema:
        loaded = loaded.with_schema(draft.schema)
    beside = parse_baselines(one.beside, str(content.get("method")))
    plan = Simulation(draft, loaded, one.setting, one.seeds[0], repeat, encryption, beside)
    identity = f"{one.run_id('cell', Cell(()), plan.seed)} {repeat} {encryption}"
    store = None if out is None else RunStore(out, identity, resume)
    workers = place.jobs or (1 if place.engine == "local" else 0)
    engine = make_engine(place.engine, workers, place.address, place.device)
    with running(engine), show_progress() as progress:
        outcome = simulate(plan, progress, lambda: int(time.time()), engine=engine, store=store)
    if out is not None and store is not None:
        save(out, plan, outcome)
        store.close()
    if as_json:
        print_json(summarise(plan, outcome))
        return
    _print_simulation(summarise(plan, outcome), outcome)
    if out is not None:
        print_line(f"Results, CSV and Markdown are in {out}.")


def _print_simulation(summary: Mapping[str, Any], outcome: SimulatedRuns) -> None:
    apart = ("accuracy", "held_out", "accuracy_by_domain", "baselines", "table", "cells")  # shown by themselves, below
    fields = {key: value for key, value in summary.items() if key not in apart and value not in (None, [])}
    sizes, scores = outcome.sizes.values(), [run.scores for run in outcome.runs]
    fields["sites"] = f"{len(sizes)} with {min(sizes)} to {max(sizes)} records"
    fields["epsilon"] = None if summary["epsilon"] is None else f"{summary['epsilon']:.4g}"
    for name, words in NAMES.items():
        if any(name in one.figures for one in scores):
            fields[words] = [f"{one.figures[name]:.4g}" for one in scores if name in one.figures]
    by_domain = [one.accuracies for one in scores if one.accuracies]
    for domain in by_domain[0] if by_domain and len(by_domain[0]) > 1 else ():
        fields[f"accuracy, {domain}"] = [f"{shares[domain]:.4g}" for shares in by_domain]
    print_fields(fields, title="Simulation", as_json=False)
    texts = {one.column: [text for text, _ in one.texts.most_common(3)] for one in outcome.cells}
    odd = [row | {"such as": texts[row["column"]]} for row in summary["cells"] if row["out of bounds"] or row["match nothing"]]
    if odd:
        odd.sort(key=lambda row: -row["match nothing"])
        print_rows(odd[:20], title="Cells that the schema does not expect, for the eyes of the records' owner", as_json=False)
    rows = [row | {key: f"{row[key]:.5g}" for key in ("mean", "std", "std_error")} for row in summary["table"]]
    for row in rows:
        if row["runs"] == 1:
            row["std"] = ""  # one run shows no spread
    print_rows(rows, title="Results over all runs", as_json=False, empty="The result has no estimates; see its bundle.")
    known = [name for name in NAMES if any(name in one.scores.figures for one in outcome.beside.values())]
    baselines = [
        {
            "records": BASELINES[kind],
            **{NAMES[name]: f"{one.scores.figures[name]:.4g}" if name in one.scores.figures else "" for name in known},
            "note": one.note,
        }
        for kind, one in outcome.beside.items()
    ]
    if baselines:
        print_rows(baselines, title="Beside it, on the same test records", as_json=False)


def _sweep(
    sweep: Sweep, encryption: bool | None, repeat: int, place: Place, out: Path | None, resume: bool, as_json: bool
) -> None:
    from veilsum_deploy.simulation.evaluate import check_sweep, evaluate
    from veilsum_deploy.simulation.plots import require_matplotlib
    from veilsum_deploy.simulation.tables import legend, problems, table_rows

    check_sweep(sweep, encryption=encryption, repeat=repeat)
    if out is not None:
        require_matplotlib()
    engine = make_engine(place.engine, place.jobs or 0, place.address, place.device)
    with running(engine), show_progress() as progress:
        results = evaluate(sweep, out, engine, progress, resume=resume)
    if as_json:
        print_json(results.to_json())
    else:
        print_rows(table_rows(sweep, results.rows), title=results.title, as_json=False)
        for line in [*results.about, "", *legend(sweep), *problems(results.rows)]:
            print_line(line.strip("*"))
        if out is not None:
            print_line(f"Runs, tables and plots are in {out}.")
    if not results.complete:
        raise typer.Exit(EXIT_INTERRUPTED)
