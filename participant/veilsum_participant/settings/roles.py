"""What each process of a participant may reach, by the site's configuration.

The front has the network and no file; the guard has keys and ledger and no network; a reader has its dataset, or that
dataset's database; the process of networks has the encoders, and devices; a compiler has nothing; what serves metrics has its
own certificate; what verifies the ledger has the state's file. Whoever starts them reads these bounds off the configuration;
each takes them on before it does anything else (:mod:`veilsum_node.process.confinement`).
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from veilsum_node.addresses import split_host_port
from veilsum_node.errors import ConfigurationError
from veilsum_node.process.confinement import Bounds, offered, reach_fault, unconfinable
from veilsum_node.transport.route import Route
from veilsum_participant.settings.config import ParticipantConfig
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.settings.query import SourceQuery

NAMES, HTTPS, METADATA = 53, 443, 80
"""Ports of TCP: name servers, AWS, and the address at which AWS hands out keys to a machine."""

_DATABASES = {"postgresql": 5432, "postgres": 5432, "mysql": 3306, "mariadb": 3306, "mssql": 1433, "oracle": 1521}

_OF_DRIVERS = {
    **dict.fromkeys(("postgresql", "postgres"), ("~/.pgpass", "~/.pg_service.conf", "~/.postgresql")),
    "mssql": ("/etc/odbc.ini", "/etc/odbcinst.ini", "~/.odbc.ini", "/opt/microsoft"),
}

_DEVICES = ("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/kfd", "/dev/dri/*")
_OF_DEVICES = ("/proc/driver/nvidia", "/sys/bus/pci", "/sys/class", "/sys/module", "/sys/devices", "/usr/share/nvidia")

_KEPT = (
    "PATH", "HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "PYTHONPATH", "PYTHONHOME", "PYTHONUTF8",
    "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "COVERAGE_PROCESS_START", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
_OF_STORES = ("AWS_", "PG", "ORACLE_", "TNS_", "MYSQL_")


UNCONFINED = "one process holds records, keys and the network: whoever takes it over has all of them"
"""What a site is that is not confined."""


def front(config: ParticipantConfig, way: Route) -> Bounds:
    """Bounds of the process with the network: it dials the coordinator or the proxy, has no file and listens on nothing."""
    dialled = way.address if way.proxy is None else way.proxy.address
    ports = tuple(sorted({split_host_port(dialled)[1], NAMES}))
    return Bounds(network=True, dial=ports, apart=(*_keys(config), *_all_records(config)))


def guard(config: ParticipantConfig) -> Bounds:
    """Bounds of the process with keys and ledger: their folders, the federation's directory and encoders, and no network."""
    read = [config.identity, *_targets(config.identity)]
    if config.policy.directory is not None:  # the operator puts another in its place
        read.append(config.policy.directory.parent)
    read += [item.path for item in config.encoders.values()]  # a study's program is found by its hash
    return Bounds(read=tuple(read), write=(config.state.resolve().parent,), alters=True)


def reader(config: ParticipantConfig, dataset: str) -> Bounds:
    """Bounds of the process that reads one dataset: its files, or its database's or store's ports.

    Raises:
        ConfigurationError: the file of the database's URL cannot be read.
    """
    offered = config.datasets[dataset]
    others = [path for name, other in config.datasets.items() if name != dataset for path in record_files(other)]
    mine = set(record_files(offered))
    apart = (*_keys(config), *(path for path in others if path not in mine))
    ports, local = _asked(offered, dataset)
    files = tuple(dict.fromkeys((*record_files(offered), *_settings(offered))))
    return Bounds(read=files, network=ports is None or bool(ports), dial=ports, local=local, apart=apart)


def torch_worker(config: ParticipantConfig) -> Bounds:
    """Bounds of the process that computes networks: encoders' files, and devices where one is configured."""
    encoders = tuple(item.path for item in config.encoders.values())
    devices = () if config.device == "cpu" else tuple(path for pattern in _DEVICES for path in Path("/").glob(pattern[1:]))
    more = tuple(map(Path, _OF_DEVICES)) if devices else ()
    return Bounds(read=(*encoders, *more), devices=devices, apart=(*_keys(config), *_all_records(config)))


def compiler(config: ParticipantConfig) -> Bounds:
    """Bounds of the process that traces a study's tasks: nothing but what Python needs."""
    return Bounds(apart=(*_keys(config), *_all_records(config)))


def metrics(config: ParticipantConfig) -> Bounds:
    """Bounds of the process that serves metrics: it accepts on a socket that it was given, and reads its certificate."""
    table = config.metrics
    files = () if table is None else (table.certificate, table.key, table.token_file)
    apart = (*_keys(config), *_all_records(config))
    read = tuple(dict.fromkeys(_renewed(path, apart) for path in files if path is not None))
    return Bounds(read=read, apart=apart)


def verifier(config: ParticipantConfig) -> Bounds:
    """Bounds of the process that verifies the ledger: it reads the state's file, and what SQLite keeps beside it."""
    state = config.state.resolve()
    files = tuple(state.with_name(f"{state.name}{suffix}") for suffix in ("", "-wal", "-shm"))
    return Bounds(read=files, apart=(config.identity, *_targets(config.identity), *_all_records(config)))


def _renewed(path: Path, apart: Iterable[Path]) -> Path:
    """The folder of a file that another one takes the place of; the file alone where the folder holds what is not its own."""
    folder = path.resolve().parent
    return path if any(folder in (other.resolve(), *other.resolve().parents) for other in apart) else folder


def bounds_of_all(config: ParticipantConfig) -> list[Bounds]:
    """Those of every process that the configuration asks for.

    Raises:
        ConfigurationError: a file that they depend on cannot be read.
    """
    readers = [reader(config, name) for name in config.datasets]
    alone = (torch_worker(config), compiler(config), metrics(config), verifier(config))
    return [front(config, config.route), guard(config), *readers, *alone]


def confinement_faults(config: ParticipantConfig) -> list[ConfigurationError]:
    """Why the site's processes cannot be confined here: the kernel, or what must be apart and is not. Empty where they can.

    Raises:
        ConfigurationError: a file that the bounds depend on cannot be read.
    """
    if not (found := offered()).enough:
        return [unconfinable(found)]
    return [error for error in map(reach_fault, bounds_of_all(config)) if error is not None]


def unconfined(config: ParticipantConfig) -> str | None:
    """None where the site runs in confined processes; else why all is one process, empty where the operator wants it so.

    Where ``isolation`` leaves it open, what hinders the former is the reason for the latter: an upgrade stops no site.
    """
    match config.isolation:
        case "processes":
            return None
        case "none":
            return ""
    try:
        faults = confinement_faults(config)
    except ConfigurationError as error:
        faults = [error]
    return str(faults[0]) if faults else None


def environment(variables: Mapping[str, str] = os.environ, *, stores: bool = False) -> dict[str, str]:
    """Variables that a process gets: none that could hold a setting or a password, but for those of stores and databases."""
    return {name: value for name, value in variables.items() if name in _KEPT or (stores and name.startswith(_OF_STORES))}


def record_files(offered: DatasetConfig) -> tuple[Path, ...]:
    """Files and folders that hold a dataset's records; of a glob, the folder above its first pattern."""
    named = [path for path in (offered.path, *offered.files.values()) if path is not None]
    if offered.images is not None:
        named.append(offered.images.folder)
    if offered.texts is not None:
        named.append(offered.texts.tokenizer)
    if (url := _url(offered)).startswith("sqlite") and (place := urlsplit(url).path[1:]):
        named += [Path(f"{place}{suffix}") for suffix in ("", "-wal", "-shm", "-journal")]
    return tuple(_unfolded(path) for path in named)


def _unfolded(path: Path) -> Path:
    for place, part in enumerate(path.parts):
        if any(letter in part for letter in "*?["):
            return Path(*path.parts[:place])
    return path


def _settings(offered: DatasetConfig) -> Iterable[Path]:
    """Files of the operator's about a dataset."""
    found = [offered.query_file, offered.misses_file, offered.schema_file, offered.dsn_file, *_named(offered)]
    if offered.s3 is not None:
        found += [offered.s3.key_file, offered.s3.ca_file]
        found += [] if offered.s3.key_file is not None else [Path("~/.aws").expanduser()]
    return [path for path in found if path is not None]


def _named(offered: DatasetConfig) -> Iterable[Path]:
    """Files that a driver of a database or a store reads by itself: those that its URL or the environment names, certificates
    say, and those that it looks for."""
    url = _url(offered)
    if url and not url.startswith("sqlite"):
        said = [value for name, values in parse_qs(urlsplit(url).query).items() if name != "host" for value in values]
        kind = url.partition(":")[0].partition("+")[0]
        yield from (Path(place).expanduser() for place in _OF_DRIVERS.get(kind, ()))
    elif offered.s3 is not None:
        said = []
    else:
        return
    said += [value for name, value in sorted(os.environ.items()) if name.startswith(_OF_STORES)]
    yield from (Path(value) for value in said if value.startswith("/") and Path(value).exists())


def _asked(offered: DatasetConfig, dataset: str) -> tuple[tuple[int, ...] | None, bool]:
    """Ports that a dataset's database or store is dialled at, None for any; and whether it is dialled by a path."""
    if offered.s3 is not None:
        store = urlsplit(offered.s3.endpoint).port if offered.s3.endpoint else None
        return tuple(sorted({store or HTTPS, NAMES, *(() if offered.s3.key_file else (HTTPS, METADATA))})), False
    url = _url(offered)
    if not url or url.startswith("sqlite"):
        return (), False
    kind = url.partition(":")[0].partition("+")[0]
    parts = urlsplit(url)
    asked = parse_qs(parts.query)
    hosts = [
        host for host in (*parts.netloc.rpartition("@")[2].split(","), *",".join(asked.get("host", [])).split(",")) if host
    ]
    by_path = not hosts or any(host.startswith(("/", "@", "%2F", "%2f")) for host in hosts)
    stated = [*",".join(asked.get("port", [])).split(","), *(host.rpartition(":")[2] for host in hosts if ":" in host)]
    ports = {int(port) for port in stated if port.isdecimal()}
    if len(ports) < 1 or any(":" not in host for host in hosts if not host.startswith("/")):
        if kind not in _DATABASES:
            return None, True
        ports.add(_DATABASES[kind])
    return tuple(sorted({*ports, NAMES})), by_path


def _url(offered: DatasetConfig) -> str:
    return SourceQuery("", "", offered.dsn, offered.dsn_file).url if offered.source == "sql" else ""


def _keys(config: ParticipantConfig) -> tuple[Path, ...]:
    return (config.identity, *_targets(config.identity), config.state)


def _targets(folder: Path) -> tuple[Path, ...]:
    """Where links in an identity's folder lead: a unit of systemd and a Secret hand keys over so."""
    found = [path.resolve() for path in folder.glob("**/*") if path.is_symlink()]
    return tuple(dict.fromkeys(path.parent for path in found if folder.resolve() not in path.parents))


def _all_records(config: ParticipantConfig) -> tuple[Path, ...]:
    return tuple(path for offered in config.datasets.values() for path in record_files(offered))
