"""Configuration files for a start: every key with its default and what it means, for an engineer to edit.

The defaults are those of the configuration models; the tests hold both together.
"""

from pathlib import Path
from string import Template

from veilsum_node.identity import Role
from veilsum_node.identity.files import write_new
from veilsum_node.process.confinement import offered

EXAMPLE_ADDRESS = "coordinator.example:8461"

_PARTICIPANT = Template("""\
# A participant's configuration. Paths are relative to this file; `veilsum participant check` tests it. Environment variables
# override it, VEILSUM__STATE or VEILSUM__LOG__FORMAT; `veilsum participant config` shows what holds.

coordinator = "$address"      # host:port of the coordinator, as its certificate names it
# proxy = "proxy.example:3128"         # HTTP proxy that tunnels to it; "environment" follows https_proxy and no_proxy
# proxy_user = "hospital"              # if it asks, with a file of mode 0600 that holds the password
# proxy_password_file = "proxy.password"
# ca_bundle = "hospital-ca.pem"        # further authorities, where the coordinator's TLS certificate is not the federation's
identity = "identity"         # directory of key.pem, certificate.pem and authority.pem
state = "participant.db"      # protocol state and privacy ledger; of an older copy the participant recovers charges first

$isolation

# [log]                       # by default plain lines on standard error
# file = "participant.log"
# format = "json"             # one object per line, for programs
# level = "info"              # or "debug", "warning"
# days = 90                   # a new file each day, and none older than so many days; without it both are left to others

# [metrics]                   # for Prometheus; on loopback, or with certificate, key and token_file: docs/metrics.md
# listen = "127.0.0.1:9465"

# Datasets that this site offers, by the name that studies use: a file (CSV, Parquet or npz), a folder of Parquet, or with
# source = "sql" what a query of your own yields, from files or a database: docs/deployment/sources.md.
[datasets.records]
path = "data/records.csv"
# population = "records"      # whose records they are; all datasets of one population share one budget
# subject = "patient"         # column that tells persons apart, for studies whose unit is the subject; it never leaves
# header = false              # where a CSV file's first line holds a record, and not the names of the columns
# most_records = 3000         # how many it may come to hold, a round number of yours; without it no exact sums are given
# delimiter = ";"             # of CSV; decimal = ",", encoding = "cp1252", compression = "gzip" are declared so too
# columns = ["age", "sex"]    # what studies may ask for, of which none is accepted without it where the first line of a CSV
                              # file names the columns; `veilsum participant check --columns` shows what is there

# Frozen encoders that studies may name by their SHA-256: a TorchScript file, or a program of torch.export. Such a file runs in
# this process: take it only from whom you trust. Base weights of adapters, a file of safetensors, are named so too.
# [encoders.resnet]
# path = "encoders/resnet.pt"

# First budget of each population; later changes: `veilsum ledger budget set`.
[budgets.records]
epsilon = 1.0                 # what one record may lose in all, over every study; "unlimited" demands no guarantee
delta = 1e-5

# A program of your own, by its whole path, that is told when a study waits for `veilsum participant approve`: on its standard
# input it gets what `veilsum participant show` prints, of all studies that began to wait; at most once a minute.
# [hooks]
# waiting = ["/usr/bin/mail", "-s", "A study waits", "officer@example.org"]

# What is erased by itself, in days after a study has expired; nothing without it. The ledger stays.
# [retention]
# studies = 365               # signed texts, rosters and kept vectors of studies that are over
# kept_vectors = 90           # noised vectors that alignments kept, before that

# What the site agrees to. Nothing that a coordinator or a study says lowers it.
[policy]
# methods = ["statistics"]    # of these alone; by default every method that the installed version has
# tasks = ["tables"]          # what may be computed on the records, whatever the method's name; by default every task
analysts = []                 # certified names whose studies are accepted; empty: nobody's; ["*"]: every analyst's
require = []                  # what a study must state in words, of "purpose", "reference", "legal_basis", "contact"
min_cohort = 3                # smallest number of sites in any sum, this one included
min_trusted = 1               # how many of them must be pinned below, this one included
noise = ["distributed", "local"]  # "none" would release exact sums without any privacy guarantee
disclosures = ["joint"]       # "per-site" would show this site's own numbers, with noise
cohort_difference = ["strict", "allowed"]  # ["strict"]: one cohort a study, and none a few sites off an earlier study's
units = ["record", "subject"] # whose presence a study must hide: one record's, or a person's with all their records
max_epsilon = 1.0             # largest epsilon of one study
max_delta = 1e-3              # largest delta of one study; well below 1 / the number of records
max_slack = 0.02              # largest share of delta with which a study's sampled steps may be taken to reveal a record
smallest_cell = 0             # fewest records of a group whose figures a study may print, such as 10; 0 for no such rule
max_attempts = 16             # how often one round may be tried
max_lost = 2                  # paid rounds without a release after which the site leaves a study
study_days = 366              # how long a study may stay open
attempt_hours = 24            # how long a reservation stays open at most
max_budget_answers = 8        # how often a day an analyst is told whether a budget allows a study that does not pay all of it
approval = "policy"           # "manual": every study waits for `veilsum participant approve`
# four_eyes_above = 0.5       # with "manual": epsilon of one study above which two people have to approve it
# four_eyes_budget = true     # two people have to set a budget
share_metrics = []            # told to the coordinator, of "software", "budget", "ledger", "timings", "certificate"
# directory = "directory.json"  # instead of [policy.trusted]: all members' keys; `veilsum participant directory confirm` first
# not_trusted = ["other-site"]  # of the directory, whom this site does not pin all the same

# Peers that this site trusts, by key fingerprint; ask their operators. Only pinned peers' noise counts: studies with
# distributed noise need every other site of the cohort here, studies with local noise need nobody.
[policy.trusted]
# other-site = "64 hexadecimal digits"
""")

_COORDINATOR = Template("""\
# A coordinator's configuration. Paths are relative to this file. Environment variables override it, VEILSUM__LISTEN or
# VEILSUM__WAITS__GRACE; `veilsum coordinator config` shows what holds.

listen = "127.0.0.1:8461"     # host:port to listen on; 0.0.0.0 for every interface, port 0 lets the system choose
identity = "identity"         # directory of key.pem, certificate.pem and authority.pem
state = "state"               # directory of the journal, encrypted sums, mirror of the ledgers, and results
# database = "postgresql://user@host/name"  # journal and mirror there instead; VEILSUM_DATABASE overrides it
# ready_file = "address"      # where the address is written once the server listens
max_peer_streams = 16         # open calls that one peer may hold at once

# [log]                       # by default plain lines on standard error
# file = "coordinator.log"
# format = "json"             # one object per line, for programs
# level = "info"              # or "debug", "warning"
# days = 90                   # a new file each day, and none older than so many days; without it both are left to others

# [metrics]                   # for Prometheus; on loopback, or with certificate, key and token_file: docs/metrics.md
# listen = "127.0.0.1:9464"

# How long the coordinator waits, in seconds.
[waits]
enrol = 3600                  # for participants to enrol or refuse; longer where operators approve by hand
seal = 600                    # for sealed keys, and again for everyone to open them
contribute = 3600             # for an attempt's uploads
check = 600                   # for the answers about a complete sum
consent = 600                 # for the consents once all have answered
grace = 30                    # for a participant whose connection broke, and for others to answer what refusals ended
database = 600                # for a database server that is away

# What is deleted by itself; the mirror never is.
# [retention]
# studies = 365               # days after a study has expired when it goes, with its sums and results
# keep_proofs = true          # but for its result and proof, in state/proofs

# A TLS certificate of another authority than the federation's, say the hospital's; clients name its root as `ca_bundle`.
# [tls]
# certificate = "tls/certificate.pem"  # the server's own first, then those of intermediate authorities
# key = "tls/key.pem"
""")

_ANALYST = Template("""\
# An analyst's or operator's settings for `veilsum study`, read from the directory where it runs. Paths are relative to this
# file. The options --coordinator and --identity, and VEILSUM_COORDINATOR and VEILSUM_IDENTITY, take precedence.

coordinator = "$address"      # host:port of the coordinator, as its certificate names it
# proxy = "proxy.example:3128"         # HTTP proxy that tunnels to it; "environment" follows https_proxy and no_proxy
# proxy_user = "hospital"              # if it asks, with a file of mode 0600 that holds the password
# proxy_password_file = "proxy.password"
# ca_bundle = "hospital-ca.pem"        # further authorities, where the coordinator's TLS certificate is not the federation's
identity = "identity"         # directory of key.pem, certificate.pem and authority.pem
""")

_PROCESSES = 'isolation = "processes"       # network, keys and records in processes of their own, confined by the kernel'
_AUTO = 'isolation = "auto"            # "processes" once the kernel of this machine can confine them; until then all in one'

_STARTERS = {Role.PARTICIPANT: _PARTICIPANT, Role.COORDINATOR: _COORDINATOR, Role.ANALYST: _ANALYST}


def write_starter(directory: Path, role: Role, address: str = EXAMPLE_ADDRESS) -> Path:
    """Write ``<role>.toml`` into a party's directory if there is none (an operator's is ``analyst.toml``); returns its path.

    Args:
        address: checked host:port of the coordinator.

    A participant's has its processes confined where this machine's kernel can do that.

    Raises:
        StateError: the file cannot be written.
    """
    role = Role.ANALYST if role is Role.OPERATOR else role  # both call the same commands, which look for one file
    path = directory / f"{role}.toml"
    if not path.exists():
        isolation = _PROCESSES if offered().enough else _AUTO
        write_new(path, _STARTERS[role].substitute(address=address, isolation=isolation).encode())
    return path
