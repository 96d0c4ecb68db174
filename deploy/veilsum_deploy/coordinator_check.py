"""The checks of a coordinator, beside the running one: nothing is changed, and one that fails stops none of the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from veilsum_coordinator.protocol.settings import CoordinatorConfig
from veilsum_node.errors import HostileInput, VeilsumError
from veilsum_node.identity import Credentials, Role, load_credentials
from veilsum_node.identity.certificate import certificate_end, moment
from veilsum_node.identity.renewal import expiry_warning
from veilsum_node.identity.tls import load_server_pair
from veilsum_node.phrases import counted
from veilsum_node.storage import look_at
from veilsum_node.telemetry.logs import printable
from veilsum_participant.checks.check import Check, CheckOutcome, storage_checks
from veilsum_participant.ledgers import open_source


def check_coordinator(config: CoordinatorConfig, clock: Callable[[], int] = lambda: int(time.time())) -> list[Check]:
    """Run every check of a coordinator, in order.

    Args:
        config: its configuration.
        clock: Unix seconds.
    """
    known: list[Credentials] = []

    def certificate() -> Iterator[Check]:
        known.append(load_credentials(config.identity, clock(), Role.COORDINATOR))
        own, authority = known[0].identity, certificate_end(known[0].authority)
        yield Check("certificate", CheckOutcome.OK, f"{own.name}, until {moment(own.not_after)}")
        for whose, until, advice in (
            (
                f"coordinator {own.name}",
                own.not_after,
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
        with open_source(config.database_place) as reader:
            if known and reader.site != known[0].identity.name:
                raise HostileInput(f"The mirror belongs to {printable(reader.site)}.", "Check identity and database.")
            count = reader.verify(authority=known[0].authority if known else None).entries
        yield Check("mirror", CheckOutcome.OK, f"{counted(count, 'entry', 'entries')}: chain, signatures and receipts hold")

    def storage() -> Iterator[Check]:
        if config.state.exists():
            found = look_at(config.state / "coordinator.db", config.state / "results")
            yield from storage_checks(found, clock(), "coordinator", backups=config.database is None)

    checks: list[Check] = []
    for name, look in (("certificate", certificate), ("TLS certificate", tls), ("mirror", mirror), ("disk", storage)):
        try:
            checks += look()
        except VeilsumError as error:
            checks.append(Check(name, CheckOutcome.FAILED, printable(error.message), printable(error.advice)))
    return checks
