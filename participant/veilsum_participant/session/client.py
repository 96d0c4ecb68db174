"""The participant's process: keeps one session to the coordinator open, answers directives, minds its own deadlines.

A participant's own certificate while its process runs: taken anew between sessions, never shown once it has ended.

A renewed certificate of the same key is taken at the next quiet moment: the session is opened anew with the same nonce, so a
running attempt goes on. A new key has to wait until no study is open, because members know the site by its key.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from veilsum_node.database import Database, open_database
from veilsum_node.errors import ConfigurationError, Damage, HostileInput, StateError, Unavailable, VeilsumError
from veilsum_node.identity import Credentials, Role, load_credentials, verify_certificate
from veilsum_node.identity.certificate import certificate_end, moment
from veilsum_node.identity.renewal import ExpiryLog, Renewal, renewed_credentials
from veilsum_node.identity.tls import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, TRANSPORT_FOLDER, load_transport
from veilsum_node.process.steady_clock import RETURN_SECONDS, SteadyClock, now
from veilsum_node.randomness import SYSTEM_RANDOM, spread
from veilsum_node.state_lock import StateLock
from veilsum_node.telemetry.logs import about
from veilsum_participant.boundary.calls import Peer
from veilsum_participant.boundary.front import STALE, Dial, Directive, DirectiveKind, Status
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.protocol.patience import REFUSING_SECONDS, StoreWatch, patience, patiently
from veilsum_participant.session.channel import SiteChannel, UndeliveredError
from veilsum_participant.session.workers import Workers
from veilsum_participant.site import Site, check_key, local_studies
from veilsum_participant.store.attempts import is_mixed
from veilsum_participant.store.studies import open_studies
from veilsum_participant.store.tables import create_tables
from veilsum_participant.telemetry.watching import Verify, watched
from veilsum_participant.worker.starting import WorkerStarter
from veilsum_privacy.ledger import Ledger

if TYPE_CHECKING:
    from veilsum_participant.datasets import Datasets
    from veilsum_participant.session.hooks import Begin, WaitingHook
    from veilsum_participant.settings.config import ParticipantConfig, Policy
    from veilsum_participant.studies import Studies

LOG = logging.getLogger("veilsum.participant")

TICK_SECONDS = 1.0
ANSWER_SECONDS = 3.0  # how long a participant that is told to stop lets the answers that it is giving be sent
FIRST_BACKOFF = 0.5
HANG_SECONDS = 30.0  # how long calls of a channel that was ended may take to end
CATCH_UP_SECONDS = 3600  # how long deadlines wait, after a start, for the coordinator to show its mirror
HELD_ELSEWHERE = Status.ALREADY_EXISTS
"""By which a coordinator refuses a session while another process with the same identity has one."""

LONGEST_VALUE = 1000
"""Characters of a value of the policy that the ledger holds; of longer ones it holds a digest."""

WAITING = 8  # directives read ahead, of 1 MiB at most; the rest wait in the stream


def open_site(
    config: ParticipantConfig,
    *,
    clock: Callable[[], int] = now,
    same_key: bool = False,
    reading: Callable[[], Datasets] | None = None,
    tracing: Callable[[], Studies] = local_studies,
) -> Site:
    """Open a participant's identity, store and ledger; sets the first budgets that the configuration names.

    Args:
        config: the site's.
        clock: Unix seconds.
        same_key: refuse an identity whose key is another one than open studies know the site by.
        reading: makes what reads records; by default this process, which then computes on the configured device.
        tracing: makes what traces tasks; by default this process.

    Raises:
        ConfigurationError, Misuse: identity, directory of the federation, files or the device are not in order.
        StateError, Unavailable, Damage: the store or the ledger is not.
    """
    if reading is None:
        from veilsum_participant.data.local import LocalDatasets
        from veilsum_privacy.training import device

        device.choose(config.device)
        reading = LocalDatasets
    credentials = load_credentials(config.identity, clock(), Role.PARTICIPANT)
    directory = None
    if config.policy.directory is not None:
        from veilsum_participant.settings.directory import with_pins  # which a site that names its pins does without

        config, directory = with_pins(config, credentials, clock())
    database = open_database(config.state)
    ledger = open_ledger(database, credentials, clock, same_key=same_key)
    with database.transaction() as connection:
        for population, budget in config.budgets.items():
            if ledger.budget(population, connection) is None:
                epsilon = None if budget.epsilon == "unlimited" else budget.epsilon
                ledger.set_budget(
                    connection, population, epsilon, budget.delta, reason="first budget", operator="participant.toml",
                    adaptive="gaussian",
                )  # fmt: skip
    steady = SteadyClock(clock, LOG, rest=RETURN_SECONDS).keep() if clock is now else clock  # a test moves its own
    site = Site(
        config, credentials, database, ledger, clock, SYSTEM_RANDOM, elapsed=steady, directory=directory, reading=reading,
        tracing=tracing,
    )  # fmt: skip
    with database.reading() as connection:
        former, mixed = any(row.box_key is None for row in open_studies(connection)), is_mixed(connection)
    if former:
        from veilsum_participant.protocol.membership import leave_former_studies

        leave_former_studies(site)
    if mixed or site.restored() is not None:
        from veilsum_participant.protocol.recovery import begin_restored

        begin_restored(site)
    return site


def open_ledger(database: Database, credentials: Credentials, clock: Callable[[], int], *, same_key: bool = False) -> Ledger:
    """Open the site's ledger, signing with the site's key.

    Raises:
        StateError: open studies know the site by another key, and ``same_key`` demands it.
    """
    if same_key:
        create_tables(database)
        with database.reading() as connection:
            check_key(connection, credentials)
    return Ledger(database, credentials=credentials, clock=clock, random=SYSTEM_RANDOM)


class Client:
    """Runs a participant until :meth:`stop`.

    Args:
        site: the participant's.
        fronts: gives the front to ask in a session; another one where the one before is out of order.
        begin: how the command ``hooks.waiting`` is run.
        way: the way to the coordinator, as it is now; None for what this process reads of the configuration.
    """

    def __init__(
        self, site: Site, fronts: Callable[[], Peer], begin: Begin | None = None, way: Callable[[], Dial] | None = None
    ) -> None:
        self.core = ParticipantCore(site)
        self._site = site
        site.patience = REFUSING_SECONDS
        self._stopping, self._ended = threading.Event(), threading.Event()
        self._fronts, self._way = fronts, way or _own_way(site)
        self._channel: SiteChannel | None = None
        self._inbox: queue.Queue[Directive | Exception | None] = queue.Queue(maxsize=WAITING)
        self._opened = False
        self._caught_up = False
        self._started = site.steady()
        self._told: set[bytes] = set()
        self._certificate = OwnCertificate(site)
        self._store = StoreWatch(site.database)
        self._hook = _waiting_hook(site, begin)
        self._anew = False

    def stop(self) -> None:
        """Ask the loop to end: what is being answered may still be sent for some seconds, then calls are cut off.

        From another thread only: a signal handler may have interrupted who holds a lock.
        """
        self._stopping.set()
        with contextlib.suppress(queue.Full):  # who has that much to read looks up by itself
            self._inbox.put_nowait(None)
        self._ended.wait(ANSWER_SECONDS + 2 * TICK_SECONDS)
        if self._channel is not None:
            self._channel.hang()

    def run(self) -> None:
        """Keep a session open; reconnect with growing pauses.

        Raises:
            StateError: coordinator and participant speak no common protocol version.
        """
        try:
            self._keep_connected()
        finally:
            if self._hook is not None:
                self._hook.stop()
            self._ended.set()

    def _keep_connected(self) -> None:
        pause = FIRST_BACKOFF
        while not self._stopping.is_set():
            self._opened = self._anew = False
            try:
                self._session()
                if self._anew:
                    continue
                if not self._stopping.is_set():
                    began = "" if self._opened else " before it began"
                    LOG.info("the coordinator ended the session%s", began, extra=about("session"))
            except UndeliveredError as error:
                if self._stopping.is_set():
                    return
                self._site.observer.held_elsewhere(error.status is HELD_ELSEWHERE)
                LOG.warning("%s: %s", self._fate(), self._explained(error), extra=about("session"))
            except HostileInput as error:
                LOG.warning("%s: %s", self._fate(), error, extra=about("session"))
                self._opened = False  # pauses grow
            except (Unavailable, ConfigurationError) as error:  # the site's own disk; or a file that the route needs is gone
                self._opened = False  # pauses grow; nothing is answered meanwhile
                LOG.warning("no session to %s: %s", self._site.config.coordinator, error, extra=about("session"))
            except (StateError, Damage):
                raise
            except Exception as error:  # whatever it was, the site's deadlines must still be minded
                LOG.error("%s: internal error", self._fate(), exc_info=error)
                self._opened = False  # what is asked again would end the next session as soon
            if self._opened:
                pause = FIRST_BACKOFF
            self._idle(spread(pause, self._site.random))
            pause = min(2 * pause, RETURN_SECONDS)

    def _fate(self) -> str:
        """What became of the session, in a line's first words: it ended, or never began."""
        place = self._site.config.coordinator
        return f"session to {place} ended" if self._opened else f"no session to {place}"

    def _explained(self, error: UndeliveredError) -> str:
        """What an operator can do something about: "unavailable" is said of most that can be wrong with a connection."""
        if error.status is HELD_ELSEWHERE:
            return error.details
        if error.status is Status.UNAVAILABLE and not self._opened and not self._stopping.is_set() and self._channel:
            with contextlib.suppress(UndeliveredError, HostileInput):
                return self._channel.explain()
        return str(error)

    def _idle(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stopping.is_set() and (left := end - time.monotonic()) > 0:
            self._expire()
            self._certificate.look()
            self._stopping.wait(min(left, TICK_SECONDS))

    def _session(self) -> None:
        self._certificate.look()
        self._certificate.take()
        self._certificate.check()
        channel = SiteChannel(self._fronts(), self._site.credentials, self._site.clock, self._site.random)
        channel.dial(self._way(), self._certificate.shown())
        self._channel = channel
        try:
            if self._stopping.is_set():  # whoever stopped may have looked for a channel before there was one
                return
            self._talk(channel)
        finally:
            channel.hang()

    def _talk(self, channel: SiteChannel) -> None:
        skew = channel.hello() - self._site.clock()
        if abs(skew) > 60:
            LOG.warning("the coordinator's clock differs by %d s", skew)
        inbox = self._inbox = queue.Queue(maxsize=WAITING)
        threading.Thread(target=_read, args=(channel.directives(self._site.nonce), inbox), daemon=True).start()
        first = self._admitted(inbox)  # what another process of this identity spends from here on, it spends without a session
        if first is None:
            return
        self._opened = True
        LOG.info("session with coordinator %s open", channel.coordinator, extra=about("session"))
        self._catch_up(channel)
        self._told.clear()
        over = threading.Event()
        workers = Workers(lambda directive: self._answer(directive, channel, over), inbox.put)
        if first.kind != DirectiveKind.PING:
            workers.put(first)
        self._site.observer.session_opened(channel.report)
        try:
            self._serve(inbox, workers, channel)
        finally:
            self._site.observer.session_ended()
            over.set()
            workers.stop()
            if self._stopping.is_set():
                workers.end_within(ANSWER_SECONDS)  # a consent that was paid for should still reach the coordinator
            channel.hang()  # calls that a worker still waits for end now
            if self._stopping.is_set() and not workers.end_within(TICK_SECONDS):
                LOG.info("stopping during a computation; it will start again at the next start")
            # a study's next session must not answer beside its last one
            ends = time.monotonic() + HANG_SECONDS
            while not self._stopping.is_set() and not workers.end_within(TICK_SECONDS):
                self._drain(inbox)
                self._expire()
                if time.monotonic() > ends:
                    channel.give_up()  # a front that holds on to calls of a channel that it ended

    def _admitted(self, inbox: queue.Queue[Directive | Exception | None]) -> Directive | None:
        """Wait until the coordinator grants the session; returns the first directive, None where the session ended before.

        Raises:
            UndeliveredError: it was refused, or the connection broke.
        """
        while not self._stopping.is_set():
            self._expire()
            with contextlib.suppress(queue.Empty):
                item = inbox.get(timeout=TICK_SECONDS)
                if isinstance(item, Exception):
                    raise item
                self._site.observer.held_elsewhere(False)
                return item
        return None

    def _catch_up(self, channel: SiteChannel) -> None:
        try:
            self.core.catch_up(channel)
        except UndeliveredError as error:
            if error.status not in (Status.INVALID_ARGUMENT, Status.UNIMPLEMENTED):
                raise
            self.core.without_mirror(channel.coordinator, "it does not know them")
        except (StateError, Damage) as error:  # no directive is answered before this is done; the next session tries again
            raise RuntimeError("what the coordinator's mirror shows cannot be kept") from error
        self._caught_up = True

    def _serve(self, inbox: queue.Queue[Directive | Exception | None], workers: Workers, channel: SiteChannel) -> None:
        due = time.monotonic()
        while not self._stopping.is_set():
            if (left := due - time.monotonic()) <= 0:  # not with every directive: it reads the database
                self._expire()
                self._act_on_decisions(workers)
                self._certificate.look()
                self._certificate.check(channel)
                channel.flush()
                left = TICK_SECONDS
                due = time.monotonic() + left
            if self._certificate.waiting and workers.idle:  # what has come meanwhile is sent again in the new session
                LOG.info("a renewed certificate was found: reconnecting", extra=about("certificate"))
                self._anew = True
                return
            try:
                item = inbox.get(timeout=left)
            except queue.Empty:
                continue
            if isinstance(item, Exception):
                raise item
            if item is None:
                return
            if self._certificate.waiting and workers.idle:
                continue
            self._site.observer.heard()
            if item.kind != DirectiveKind.PING:
                workers.put(item)

    @staticmethod
    def _drain(inbox: queue.Queue[Directive | Exception | None]) -> None:
        """Let nobody block on a session that is over."""
        with contextlib.suppress(queue.Empty):
            while True:
                inbox.get_nowait()

    def _handle(self, directive: Directive, channel: SiteChannel) -> None:
        if self._site.database.write_fault:  # nothing is fetched or computed for a disk that takes nothing
            with contextlib.suppress(Damage):  # of which the answer tells
                self._site.database.probe()
        self.core.handle(directive, channel)

    def _answer(self, directive: Directive, channel: SiteChannel, over: threading.Event) -> None:
        try:
            try:
                patiently(lambda: self._handle(directive, channel), patience(directive.kind), over)
            except Unavailable as error:
                if not over.is_set():
                    self.core.unable(directive, error, channel)
        except UndeliveredError as error:
            if error.status not in STALE:
                raise
            fields = about(digest=directive.study, round=directive.round or None, attempt=directive.attempt or None)
            LOG.info("the coordinator no longer wants that answer: %s", error.details, extra=fields)

    def _act_on_decisions(self, workers: Workers) -> None:
        """Let the operator's word on waiting studies be acted on, once in a session for each."""
        try:
            decided = [directive for directive in self.core.decided() if directive.study not in self._told]
        except VeilsumError as error:
            if not self._site.database.write_fault:  # which is told once, and not every second
                LOG.error("cannot read the operator's decisions: %s", error)
            return
        for directive in decided:
            self._told.add(directive.study)
            workers.put(directive)

    def _expire(self) -> None:
        self._site.observer.turned()
        self._store.look()
        # A site restored from a backup must first hear what it consented to: freeing that would be wrong. A coordinator that
        # stays away must not hold reservations for ever either; what was freed in error is charged once it is back.
        if not self._caught_up and self._site.steady() - self._started < CATCH_UP_SECONDS:
            return
        try:
            self.core.expire()
            if self._hook is not None:
                self._hook.look()
        except VeilsumError as error:
            if not self._site.database.write_fault:  # which is told once, and not every second
                LOG.error("cannot act on deadlines: %s", error)


def _own_way(site: Site) -> Callable[[], Dial]:
    from veilsum_participant.settings.telling import dialling  # of a site that is one process

    return lambda: dialling(site.config.route)


def _waiting_hook(site: Site, begin: Begin | None) -> WaitingHook | None:
    """What tells the site's own command of waiting studies; None where it names none."""
    if not site.config.hooks.waiting:
        return None
    from veilsum_participant.session.hooks import WaitingHook  # which a site without a command does without

    return WaitingHook(site, begin=begin)


def _read(directives: Iterator[Directive], inbox: queue.Queue[Directive | Exception | None]) -> None:
    try:
        for directive in directives:
            inbox.put(directive)
    except (UndeliveredError, HostileInput) as error:
        inbox.put(error)
    finally:
        inbox.put(None)


@dataclass(frozen=True)
class Parts:
    """What a running participant has others do.

    Attributes:
        fronts: as of :class:`Client`.
        reading: as of :func:`open_site`.
        tracing: the same.
        begin: how a command of the site's own is run; None for a child of this process.
        starter: of the process that serves metrics; None for this one.
        served: where that serves them.
        verify: how the ledger is verified; None for this process.
        way: as of :class:`Client`.
    """

    fronts: Callable[[], Peer]
    reading: Callable[[], Datasets] | None = None
    tracing: Callable[[], Studies] = local_studies
    begin: Begin | None = None
    starter: WorkerStarter | None = None
    served: str = ""
    verify: Verify | None = None
    way: Callable[[], Dial] | None = None


def run_participant(config: ParticipantConfig, parts: Parts) -> None:
    """Run a participant until SIGINT or SIGTERM."""
    identity = load_credentials(config.identity, now(), Role.PARTICIPANT).identity
    lock = StateLock(config.state, f"participant {identity.name}")
    lock.hold("Stop it first: two processes on one ledger would be two sites to the federation.", LOG)
    site = open_site(config, same_key=True, reading=parts.reading, tracing=parts.tracing)
    client = Client(site, parts.fronts, parts.begin, parts.way)
    record_policy(site)
    site.hold_against_schemas()
    for name in filter(site.withheld, config.datasets):
        LOG.warning("dataset %s is withheld: more of its cells match nothing in its schema than most_unmatched", name)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: threading.Thread(target=client.stop, daemon=True).start())
    LOG.info("participant %s starts", site.name, extra=about("started", participant=site.name))
    with contextlib.suppress(KeyboardInterrupt), watched(site, parts.starter, parts.served, parts.verify):
        client.run()
    site.close()
    lock.release()
    LOG.info("stopped", extra=about("stopped"))


def record_policy(site: Site) -> None:
    """Have the ledger say what of the policy changed since the last start.

    Raises:
        Unavailable, Damage: the ledger cannot be written.
    """
    with site.database.transaction() as connection:
        entry = site.ledger.record_policy(connection, policy_values(site.config.policy))
    if entry is not None:
        LOG.info("entry %d of the ledger says what is new in the policy since the last start", entry)


def policy_values(policy: Policy) -> dict[str, str]:
    """Every key of the policy with its value as JSON, or the digest of a long one; each pinned peer has a key of its own.

    Of a directory's file its path is left out: what it pins is there.
    """
    values: dict[str, object] = {name: value for name, value in policy if name not in ("directory", "trusted")}
    values |= {f"trusted.{name}": fingerprint for name, fingerprint in policy.trusted.items()}
    texts = {f"policy.{key}": json.dumps(value, sort_keys=True) for key, value in values.items()}
    return {key: text if len(text) <= LONGEST_VALUE else _digest(text) for key, text in texts.items()}


def _digest(text: str) -> str:
    return f"SHA-256 {hashlib.sha256(text.encode()).hexdigest()}"


class OwnCertificate:
    """Watches the identity directory of a site; the client's loop calls it."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._renewal = renewed_credentials(site.config.identity, lambda: site.credentials, site.clock, self._allowed)
        self._renewed: Credentials | None = None
        folder = site.config.identity / TRANSPORT_FOLDER
        files = (folder / name for name in (KEY_FILE, CERTIFICATE_FILE, AUTHORITY_FILE))
        self._transport = Renewal(files, self._load_shown, f"key of connections in {folder}")
        self._shown: Credentials | None = None
        self._other = False  # whether connections are to show another certificate than the session's does
        self._expiry = ExpiryLog(site.clock)

    def _allowed(self, found: Credentials) -> None:
        with self._site.database.reading() as connection:
            check_key(connection, found)

    @property
    def waiting(self) -> bool:
        """Whether a renewed certificate waits to be taken."""
        return self._renewed is not None or self._other

    def shown(self) -> Credentials:
        """What a new connection shows: the certificate of connections, or where there is none the site's own.

        Raises:
            ConfigurationError: it is not in order, and none was in use before.
        """
        self._shown, self._other = self._load_shown(), False
        return self._shown

    def _load_shown(self) -> Credentials:
        return load_transport(self._site.config.identity, self._site.clock(), self._site.credentials)

    def look(self) -> None:
        """Look for a renewed certificate, and log what ends soon."""
        found, used = self._renewal.poll(), self._site.credentials
        if found is not None:
            same = (found.certificate_pem, found.key_pem) == (used.certificate_pem, used.key_pem)
            self._renewed = None if same else found
        shown = self._transport.poll()
        if shown is not None and self._shown is not None:
            self._other = shown.certificate_pem != self._shown.certificate_pem
        if self._shown is not None and self._shown is not used:
            self._expiry.check(f"this site's connections, {used.identity.name},", self._shown.identity.not_after)
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

    def check(self, channel: SiteChannel | None = None) -> None:
        """Check that what a session stands on is valid now.

        Args:
            channel: of the session; its coordinator is asked for a renewed certificate before its own is held to have ended.

        Raises:
            CertificateExpired: names whose certificate ended, and when.
            HostileInput: the coordinator does not prove its name again.
        """
        used, now = self._site.credentials, self._site.clock()
        verify_certificate(used.identity.certificate, used.authority, now, Role.PARTICIPANT)
        if self._shown is not None and self._shown.identity.role is Role.TRANSPORT:
            verify_certificate(self._shown.identity.certificate, used.authority, now, Role.TRANSPORT)
        if channel is not None and now > channel.coordinator_end:
            channel.greet_again()
