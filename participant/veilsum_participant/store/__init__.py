"""What a participant must remember across a crash.

One module a subject: studies with their keys; attempts with their payloads; studies that wait for the operator's word; what
was kept or trained for later rounds; how much of peers' accounts and of the coordinator's mirror was seen; and what outlives
studies on a population.

The tables lie in the file of the site's ledger, so that a payload and its reservation, or a consent and its charge, are one
transaction. The migrations make them. These modules store and find; what may be stored when is decided in
:mod:`veilsum_participant.protocol`.
"""

from veilsum_participant.store.attempts import (
    ATTEMPTS,
    OPEN,
    PAID,
    AttemptRow,
    AttemptState,
    AttemptTally,
    add_attempt,
    attempts_in,
    change_attempt,
    count_attempts,
    find_attempt,
    find_context,
    is_late,
    recovered_receipts,
    tally,
    took_part,
)
from veilsum_participant.store.kept import (
    KEPT,
    STATES,
    KeptVector,
    drop_states,
    find_kept,
    keep_state,
    keep_vector,
    kept_vector,
    paid_state,
)
from veilsum_participant.store.peers import keep_mirror_entry, keep_peers, mirror_entry, peer_numbers
from veilsum_participant.store.pending import (
    PENDING,
    PendingRow,
    PendingState,
    add_pending,
    change_pending,
    count_waiting,
    drop_pending,
    find_pending,
    pending,
)
from veilsum_participant.store.populations import ANSWERS, COHORTS
from veilsum_participant.store.studies import (
    STUDIES,
    TAKING_PART,
    StudyRow,
    StudyState,
    add_study,
    change_study,
    count_enrolled,
    find_method,
    find_study,
    open_studies,
    signed_studies,
)
from veilsum_participant.store.tables import METADATA, create_tables, promised

__all__ = [
    "ANSWERS",
    "ATTEMPTS",
    "COHORTS",
    "KEPT",
    "METADATA",
    "OPEN",
    "PAID",
    "PENDING",
    "STATES",
    "STUDIES",
    "TAKING_PART",
    "AttemptRow",
    "AttemptState",
    "AttemptTally",
    "KeptVector",
    "PendingRow",
    "PendingState",
    "StudyRow",
    "StudyState",
    "add_attempt",
    "add_pending",
    "add_study",
    "attempts_in",
    "change_attempt",
    "change_pending",
    "change_study",
    "count_attempts",
    "count_enrolled",
    "count_waiting",
    "create_tables",
    "drop_pending",
    "drop_states",
    "find_attempt",
    "find_context",
    "find_kept",
    "find_method",
    "find_pending",
    "find_study",
    "is_late",
    "keep_mirror_entry",
    "keep_peers",
    "keep_state",
    "keep_vector",
    "kept_vector",
    "mirror_entry",
    "open_studies",
    "paid_state",
    "peer_numbers",
    "pending",
    "promised",
    "recovered_receipts",
    "signed_studies",
    "tally",
    "took_part",
]
