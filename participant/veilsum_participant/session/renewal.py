"""A participant's own certificate while its process runs: taken anew between sessions, never shown once it has ended.

A renewed certificate of the same key is taken at the next quiet moment: the session is opened anew with the same nonce, so a
running attempt goes on. A new key has to wait until no study is open, because members know the site by its key.
"""

from __future__ import annotations

import logging

from veilsum_node.errors import VeilsumError
from veilsum_node.identity import Credentials, Role, verify_certificate
from veilsum_node.identity.certificate import certificate_end, moment
from veilsum_node.identity.renewal import ExpiryLog, renewed_credentials
from veilsum_node.telemetry.logs import about
from veilsum_participant.session.channel import GrpcChannel
from veilsum_participant.site import Site, check_key

LOG = logging.getLogger("veilsum.participant")


class OwnCertificate:
    """Watches the identity directory of a site; the client's loop calls it."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._renewal = renewed_credentials(site.config.identity, lambda: site.credentials, site.clock, self._allowed)
        self._renewed: Credentials | None = None
        self._expiry = ExpiryLog(site.clock)

    def _allowed(self, found: Credentials) -> None:
        with self._site.database.reading() as connection:
            check_key(connection, found)

    @property
    def waiting(self) -> bool:
        """Whether a renewed certificate waits to be taken."""
        return self._renewed is not None

    def look(self) -> None:
        """Look for a renewed certificate, and log what ends soon."""
        found, used = self._renewal.poll(), self._site.credentials
        if found is not None:
            same = (found.certificate_pem, found.key_pem) == (used.certificate_pem, used.key_pem)
            self._renewed = None if same else found
        self._expiry.check(f"participant {used.identity.name}, this site's own,", used.identity.not_after)
        self._expiry.check("the federation's authority", certificate_end(used.authority))
        if self._site.directory is not None:
            self._expiry.check("the federation", self._site.directory.expires, "directory")

    def take(self) -> None:
        """Between sessions: show and sign with what was renewed."""
        found, self._renewed = self._renewed, None
        if found is None:
            return
        try:
            self._site.renew(found)
        except VeilsumError as error:  # a study was joined since, or the database refuses
            self._renewal.forget()
            LOG.warning("the renewed certificate is not taken: %s", error, extra=about("certificate"))
            return
        until, key = moment(found.identity.not_after), found.signing_key.fingerprint[:16]
        LOG.info("renewed certificate taken, until %s, key %s", until, key, extra=about("certificate"))

    def check(self, channel: GrpcChannel | None = None) -> None:
        """Check that what a session stands on is valid now.

        Args:
            channel: of the session; its coordinator is asked for a renewed certificate before its own is held to have ended.

        Raises:
            CertificateExpired: names whose certificate ended, and when.
            HostileInput: the coordinator does not prove its name again.
        """
        used, now = self._site.credentials, self._site.clock()
        verify_certificate(used.identity.certificate, used.authority, now, Role.PARTICIPANT)
        if channel is not None and now > channel.coordinator_end:
            channel.greet_again()
