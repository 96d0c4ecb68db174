"""What `veilsum participant check` tests: identity, connection, clock, ledger, budgets, policy, data. Nothing is changed.

Every check runs, whatever failed before. Reports name places in files, never a cell's value, and are for the site's operator.
"""

from veilsum_node.process.check import Check, CheckOutcome
from veilsum_participant.checks.site_check import AskedStudy, SiteCheck, compile_asked

__all__ = ["AskedStudy", "Check", "CheckOutcome", "SiteCheck", "compile_asked"]
