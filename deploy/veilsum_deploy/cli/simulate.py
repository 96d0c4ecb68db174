"""The ``veilsum simulate`` command: one study on simulated sites, or a whole evaluation of cells and seeds."""

from pathlib import Path
from typing import Annotated

import typer

from veilsum_deploy.data_names import COLLECTIONS, PACKAGED
from veilsum_deploy.simulation.baseline_names import BASELINES
from veilsum_node.errors import Misuse
from veilsum_node.process.console import DialectOption, JsonOption
from veilsum_privacy.training import device

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
    weights: Annotated[
        Path | None, typer.Option("--weights", help="File of the model's base weights, for a study of adapters.")
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
    vary: Annotated[list[str] | None, typer.Option("--vary", metavar="KEY=V1,V2,...", help=_VARY)] = None,
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
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the runs or rounds saved in --out.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="New directory for results and tables.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Try a study on simulated sites in this process, with the real noise and the real encryption.

    With --vary or --seeds a whole evaluation runs, on all cores and without encryption: every combination of values for every
    seed, beside each site alone and pooled records. --out gets each run, the table with paired gains, and plots.
    """
    from veilsum_deploy.cli.simulated import Place, simulate_one, simulate_sweep, source_of  # with all that a study loads
    from veilsum_deploy.simulation.deal import Setting
    from veilsum_deploy.simulation.study import read_content
    from veilsum_deploy.simulation.sweep import Sweep, parse_axis, parse_baseline

    source = source_of(study, data, dataset, collection, site_column, domain_column, subject, tuple(dialect or ()))
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
    frozen = program, weights
    sweep = Sweep(read_content(study, encoder), study.parent, source, setting, axes, numbers, pair, *frozen, baselines)
    if sweeping:
        simulate_sweep(sweep, encryption, repeat, place, out, resume, as_json)
    else:
        simulate_one(study, sweep, repeat, encryption is not False, place, out, resume, as_json)
