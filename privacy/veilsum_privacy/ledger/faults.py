"""What verification raises."""

from veilsum_node.errors import HostileInput


class LedgerFault(HostileInput):
    """A ledger does not hold what it should.

    Attributes:
        entry: number of the first entry that fails, None if it is not one entry's fault.
        site: whose ledger that is, None if that is not known.
    """

    def __init__(self, message: str, advice: str = "", *, entry: int | None = None, site: str | None = None) -> None:
        super().__init__(message, advice)
        self.entry, self.site = entry, site


def require(condition: bool, fault: str) -> None:
    """Raise unless a rule holds.

    Raises:
        HostileInput: it does not; whoever knows the entry names it.
    """
    if not condition:
        raise HostileInput(fault + ".")
