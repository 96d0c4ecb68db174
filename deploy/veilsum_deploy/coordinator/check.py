"""The checks of a coordinator, beside the running one: nothing is changed, and one that fails stops none of the others."""

import time
from collections.abc import Callable, Iterator
from functools import partial

from veilsum_coordinator.protocol.settings import CoordinatorConfig
from veilsum_node.errors import HostileInput, VeilsumError
from veilsum_node.identity import Credentials, Role, load_credentials
from veilsum_node.identity.certificate import certificate_end, moment
from veilsum_node.identity.renewal import expiry_warning
from veilsum_node.identity.server_pair import load_server_pair
from veilsum_node.phrases import counted
from veilsum_node.process.check import Check, CheckOutcome, storage_checks
from veilsum_node.storage import look_at
from veilsum_node.telemetry.logs import printable
from veilsum_privacy.dossier.ledgers import open_source

Look = Callable[[], list[Check]]
"""Makes a check; raises no :class:`VeilsumError`, and can be called in a thread of its own."""


def check_coordinator(config: CoordinatorConfig, clock: Callable[[], int] = lambda: int(time.time())) -> list[Check]:
    """Run every check of a coordinator, in order.

    Args:
        clock: Unix seconds.
    """
    return [check for _, look in coordinator_checks(config, clock) for check in look()]


def coordinator_checks(config: CoordinatorConfig, clock: Callable[[], int]) -> list[tuple[str, Look]]:
    """Every check by its name, in order; none needs another one to have run."""

    def own() -> Credentials:
        return load_credentials(config.identity, clock(), Role.COORDINATOR)

    def certificate() -> Iterator[Check]:
        credentials = own()
        identity, authority = credentials.identity, certificate_end(credentials.authority)
        yield Check("certificate", CheckOutcome.OK, f"{identity.name}, until {moment(identity.not_after)}")
        for whose, until, advice in (
            (
                f"coordinator {identity.name}",
                identity.not_after,
                "Have the authority sign a request again, and put the certificate there.",
            ),
            ("the federation's authority", authority, "Make its successor known to every member before that."),
        ):
            if soon := expiry_warning(whose, until, clock()):
                yield Check("certificate", CheckOutcome.WARNING, soon, advice)

    def tls() -> Iterator[Check]:
        if config.tls is not None:
            load_server_pair(config.tls.certificate, config.tls.key, clock())
            yield Check("TLS certificate", CheckOutcome.OK, str(config.tls.certificate))

    def mirror() -> Iterator[Check]:
        if config.database is None and not (config.state / "coordinator.db").exists():
            yield Check("mirror", CheckOutcome.WARNING, "there is none yet", "It is made when the coordinator starts.")
            return
        try:
            known: Credentials | None = own()
        except VeilsumError:  # which the check of the certificate says
            known = None
        with open_source(config.database_place) as reader:
            if known is not None and reader.site != known.identity.name:
                raise HostileInput(f"The mirror belongs to {printable(reader.site)}.", "Check identity and database.")
            count = reader.verify(authority=None if known is None else known.authority).entries
        yield Check("mirror", CheckOutcome.OK, f"{counted(count, 'entry', 'entries')}: chain, signatures and receipts hold")

    def storage() -> Iterator[Check]:
        if config.state.exists():
            found = look_at(config.state / "coordinator.db", config.state / "results")
            yield from storage_checks(found, clock(), "coordinator", backups=config.database is None)

    checks = (("certificate", certificate), ("TLS certificate", tls), ("mirror", mirror), ("disk", storage))
    return [(name, partial(_tried, name, check)) for name, check in checks]


def _tried(name: str, check: Callable[[], Iterator[Check]]) -> list[Check]:
    found: list[Check] = []
    try:
        found.extend(check())
    except VeilsumError as error:
        found.append(Check(name, CheckOutcome.FAILED, printable(error.message), printable(error.advice)))
    return found
