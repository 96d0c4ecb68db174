"""What verifies results of versions 2 to 5 of the protocol, and nothing else: no key, no encryption, no way to make a sum.

In these versions members held a common key, and two of every cohort decrypted the sum and signed for what they found.
"""
