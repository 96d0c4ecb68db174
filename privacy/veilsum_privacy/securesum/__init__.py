"""How the vector is packed, masked and encrypted, how the sum is checked, and when it opens."""

NONCE_BYTES = 16
"""Of a member's session, which an assignment names."""
