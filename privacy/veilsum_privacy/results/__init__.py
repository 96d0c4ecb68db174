"""What a study yields: a manifest, tables and arrays, and beside them the proof that others can check.

A result's manifest names every release that it was made of, with the signatures of those who decrypted it. The proof holds the
signed study with its roster, and for each release the assignment, the cohort's receipts, the coordinator's word on them, the
consents and the released integers. Whoever has the federation's authority certificate can check it, and needs nothing else.
"""
