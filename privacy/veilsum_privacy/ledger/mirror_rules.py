"""What may follow what in a coordinator's mirror."""

from collections.abc import Mapping

from veilsum_node.errors import HostileInput
from veilsum_privacy.ledger.entries import Entry, Kind
from veilsum_privacy.ledger.faults import require
from veilsum_privacy.ledger.rules import Rules, described
from veilsum_privacy.ledger.totals import Standing


class MirrorRules(Rules):
    """A coordinator's mirror: receipts shown, then the cohort's consent, then the release."""

    def __init__(self) -> None:
        self._reached: dict[bytes, tuple[Kind, Entry]] = {}

    @property
    def populations(self) -> Mapping[str, Standing]:
        """None: a mirror holds no budgets."""
        return {}

    def check(self, entry: Entry) -> None:
        match entry.kind:
            case Kind.GENESIS:
                require(entry.seq == 1, "the ledger must begin with its one genesis entry")
            case Kind.KEY:
                pass
            case Kind.RECEIPTS:
                self._follow(entry, None, "receipts of its context were shown before")
            case Kind.CONSENT:
                self._follow(entry, Kind.RECEIPTS, "it is the consent to what was never shown, or was consented to before")
            case Kind.RELEASE_SEEN:
                self._follow(entry, Kind.CONSENT, "it releases what was never consented to, or was released before")
            case _:
                raise HostileInput("only a site's own ledger has entries of this kind.")

    def _follow(self, entry: Entry, before: Kind | None, fault: str) -> None:
        if entry.context is None:
            raise HostileInput("it describes no complete release.")
        kind, shown = self._reached.get(entry.context, (None, entry))
        require(kind is before, fault)
        require(described(entry) == described(shown), "its release is not the one whose receipts were shown")
        self._reached[entry.context] = (entry.kind, shown)
