"""The site's console: pages for those who answer for its records, of the same functions as the commands.

It reads the ledger and the waiting studies, and writes decisions and budgets by :mod:`veilsum_participant.protocol.approval`
and :mod:`veilsum_participant.cli.budget_changes`. It opens no dataset, and does not start where its user could.
"""
