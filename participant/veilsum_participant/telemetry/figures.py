"""What a site's state file says of the site, as figures: for its own metrics, and for what it shares of them."""

from __future__ import annotations

from dataclasses import dataclass

from veilsum_privacy.ledger.metrics import LedgerFigures


@dataclass(frozen=True)
class SiteFigures:
    """What a site's database knows.

    Attributes:
        ledger: its ledger.
        enrolled: studies that it is enrolled in.
        waiting: studies that wait for the operator's word.
    """

    ledger: LedgerFigures
    enrolled: int
    waiting: int
