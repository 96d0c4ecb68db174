"""What a result is proven with, for whoever holds the federation's authority certificate and nothing else.

A result's manifest names every release that it was made of, with the signatures of those who decrypted it. Beside it lies the
proof: the signed study with its roster, and for each release the assignment, the cohort's receipts, the coordinator's word on
them, the consents, and the released integers.
"""
