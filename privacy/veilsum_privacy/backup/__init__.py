"""Backups of a party's state, its ledger first, and what a restored party may not do until its ledger is whole again."""
