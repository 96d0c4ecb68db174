"""Verifies a site's ledger, in a process without keys where the site is in processes; a guard does not load it.

That process is a fork of the launcher, which holds no key either and has loaded most of what it takes: an interpreter of its
own would cost each start half a second. It reads the state's file and nothing else, says one message, and ends.
"""

import os
import signal
from pathlib import Path
from typing import NoReturn

from cryptography import x509

from veilsum_node.database_places import open_readonly
from veilsum_node.errors import VeilsumError
from veilsum_node.process.confinement import Bounds, confine
from veilsum_participant.boundary.verifying import LONGEST_WORDS, MOST_SHOWN, LedgerSaid
from veilsum_participant.worker.ending import ends_with_it
from veilsum_privacy.ledger.faults import LedgerFault
from veilsum_privacy.ledger.reader import LedgerReader


def examined(state: Path, authority: x509.Certificate) -> LedgerSaid:
    """Verify the ledger of a state, in a connection that can only read; raises nothing.

    Args:
        state: the file.
        authority: the federation's.
    """
    try:
        with open_readonly(state) as database:
            found = LedgerReader(database).verify(authority=authority)
    except LedgerFault as error:
        return LedgerSaid(fault=str(error)[:LONGEST_WORDS])
    except VeilsumError as error:  # unread is not wrong
        return LedgerSaid(unread=str(error)[:LONGEST_WORDS])
    except Exception as error:  # noqa: BLE001  whatever it was, the site is told that nothing was proven
        return LedgerSaid(unread=f"internal error: {type(error).__name__}")
    return LedgerSaid(found.entries, found.receipts, found.set_back[:MOST_SHOWN])


def examine_apart(told: int, bounds: Bounds, state: Path, authority: bytes) -> NoReturn:
    """Be the process that verifies, from a fork that has no thread: confine it, write what is found to a pipe, and end.

    Args:
        told: the pipe.
        bounds: of this process.
        state: the file.
        authority: certificate of the federation's, DER.
    """
    with ends_with_it():
        signal.set_wakeup_fd(-1)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):  # its words are the message's alone
            os.dup2(nowhere, standard)
        confine(bounds, keep=(told,))
        with os.fdopen(told, "wb") as words:
            words.write(examined(state, x509.load_der_x509_certificate(authority)).to_bytes())
    raise AssertionError
