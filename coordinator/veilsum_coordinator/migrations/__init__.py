"""Versions of the coordinator's tables, counted in ``coordinator_version``; run by :func:`veilsum_privacy.database.migrate`."""

HEAD = "0001"
"""The last version."""
