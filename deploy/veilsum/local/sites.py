"""Real identities, stores and ledgers for simulated sites in one directory, joined to a hub in this process.

Their policies accept every study and their budgets have no bound: a simulation shows what a study would release, not whether
sites would agree to it.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from veilsum.local.federation import LocalFederation
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.protocol.settings import Waits
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.storage.journal import SqlJournal
from veilsum_node.database import open_database
from veilsum_node.identity import load_credentials
from veilsum_node.identity.kit import Kit, make_kit
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_participant.data.sources import reader_of
from veilsum_participant.local_studies import LocalStudies
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.session.client import open_site
from veilsum_participant.settings.config import BudgetConfig, ParticipantConfig, Policy
from veilsum_participant.settings.dataset_config import DatasetConfig, EncoderConfig
from veilsum_privacy.ledger.mirror import Mirror

DELTA = 1e-5


def make_local(
    directory: Path,
    files: Mapping[str, Path],
    dataset: str,
    clock: Callable[[], int],
    stack: ExitStack,
    *,
    subject: str | None = None,
    header: bool = True,
    encoders: Mapping[str, Path] | None = None,
) -> tuple[Kit, LocalFederation]:
    """Make a federation of simulated sites.

    Args:
        directory: empty or new; takes identities and databases.
        files: each site's data by its name, at least two.
        dataset: the data's name in studies.
        clock: unix seconds.
        stack: closes the databases.
        subject: the files' column that tells whose record each is, for studies whose unit is the subject.
        header: whether the first line of a CSV file names its columns.
        encoders: files of frozen encoders that studies may use, by names of their own.
    """
    kit = make_kit(directory, sorted(files), clock=clock, federation="simulation")
    trusted = {party.name: load_credentials(party.identity, clock()).identity.fingerprint for party in kit.participants}
    policy = Policy(
        methods=tuple(METHODS),
        analysts=("*",),
        trusted=trusted,
        min_cohort=2,
        noise=("distributed", "local", "none"),
        disclosures=("joint", "per-site"),
        max_epsilon=1000,
    )
    cores, studies = {}, LocalStudies(shared=True)
    for party in kit.participants:
        # whoever simulates has the files, so that no sum shows anything new of their size
        offered = DatasetConfig(path=files[party.name], subject=subject, header=header, most_records=1)
        if offered.named_in_records:  # whoever simulates has the files
            names = reader_of(files[party.name]).layout()[0].schema.names
            offered = offered.model_copy(update={"columns": tuple(name for name in names if names.count(name) == 1)})
        config = ParticipantConfig(
            coordinator="localhost:1",  # never dialled
            identity=party.identity,
            state=party.directory / "participant.db",
            datasets={dataset: offered},
            encoders={name: EncoderConfig(path=path) for name, path in (encoders or {}).items()},
            budgets={dataset: BudgetConfig(epsilon="unlimited", delta=DELTA)},
            policy=policy,
        )
        site = open_site(config, clock=clock, tracing=lambda: studies)
        stack.callback(site.database.close)
        cores[party.name] = ParticipantCore(site)
    database = stack.enter_context(open_database(kit.coordinator.directory / "coordinator.db"))
    credentials = load_credentials(kit.coordinator.identity, clock())
    mirror = Mirror(database, credentials=credentials, clock=clock, random=SYSTEM_RANDOM)
    hub = Hub(credentials, SqlJournal(database, mirror), waits=Waits(), clock=clock)
    return kit, LocalFederation(hub, cores, clock)
