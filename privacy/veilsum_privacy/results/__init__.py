"""What a study yields: a manifest, tables and arrays, and beside them the proof that others can check.

A result's manifest names every release that it was made of. The proof holds the signed study with its roster, and for each
release the assignment, the cohort's receipts, answers and consents, the coordinator's words on them, and the sum, which opens
to the released integers. Whoever has the federation's authority certificate can check it, and needs nothing else.
"""
