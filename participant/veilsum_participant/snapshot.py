"""Which records a release was computed from: a digest that the site can make again, and that tells nobody else anything.

A ledger is exported, and whoever knows all records but one could try a plain hash. So the digest is keyed with a secret of the
site's, and bound to the release: two releases of the same records do not show that nothing changed between them.
"""

from __future__ import annotations

import hmac

KEY_PURPOSE = "snapshot"


def snapshot(digest: bytes, key: bytes, context: bytes) -> bytes:
    """HMAC-SHA256 of a release's context (32 bytes) and the digest of its records, under the site's secret (32 bytes).

    Args:
        digest: 32 bytes; or none, for records that could not be read to their end.
    """
    return hmac.digest(key, context + digest, "sha256")
