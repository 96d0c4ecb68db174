"""Evaluations: study files for ``veilsum simulate`` and ``veilsum demo``, and those that need more than a study file.

``python -m evaluations NAME`` runs one of the latter on plain federations and prints its tables; docs/results.md has the
commands and the figures. For checkouts only; nothing of it is in the wheel, and nothing in the wheel imports it.
"""
