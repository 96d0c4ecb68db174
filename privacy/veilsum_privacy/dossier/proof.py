"""What a verified ledger proves and what it cannot, in words, and how somebody else repeats the verification."""

from __future__ import annotations

from veilsum_privacy.dossier.model import Proof


def proven(proof: Proof, owner: str, *, mirror: bool = False) -> list[str]:
    """What follows from a verification that found no fault; nothing if it found one.

    Args:
        proof: what verification found.
        owner: whose ledger it is.
        mirror: whether it is a coordinator's.
    """
    if not proof.valid:
        return []
    found = ["Nothing was changed, removed, inserted or moved since it was signed, up to the head named here."]
    if mirror:
        found.append("Every sum that is noted as released was shown to its cohort, and every member of it had consented.")
    else:
        found += [
            "Every entry was allowed after those before it: no release without a reservation, none beyond the budget then in "
            "force, none charged twice. What a restored backup had lost and receipts brought back is marked as such.",
            "The totals follow from the recorded releases alone. They were computed anew, by two accountants.",
        ]
    found.append("Every receipt that is kept with it is signed by the member that it names.")
    if not mirror:
        found.append("Where receipts are kept with a charge, the coordinator signed for showing exactly these to the cohort.")
    if proof.authority:
        found.append(
            f"The keys that signed are certified for {owner} by the authority whose certificate was given for the check."
        )
    if proof.against:
        found.append(f"It agrees with what is recorded of it in {_listed(proof.against)}.")
    return found


def unproven(proof: Proof, *, mirror: bool = False) -> list[str]:
    """What such a verification leaves open, whatever it found."""
    left = []
    if not proof.authority:
        left.append(
            "Whose the keys are: only the ledger itself says so. Compare the federation's fingerprint with what its authority "
            "publishes, or give the authority's certificate with --authority."
        )
    last = "That its last entry is the last there ever was, and that there is no second version: "
    if proof.against:
        left.append(last + "that is known only as far as the ledgers compared with it have seen.")
    elif proof.head_given:
        left.append(last + "that is known only if the given head comes from somebody who knows the latest one.")
    else:
        left.append(last + "only others can tell. Give a head that they saw with --head, or what they hold with --against.")
    if not mirror:
        left.append(
            "That the software at the site did what was recorded: that noise was drawn as stated, and that nothing left "
            "by another route."
        )
    return left


def repeating(head: str) -> list[str]:
    """The commands by which a third party repeats the verification from an export; the first is run at the site."""
    return [
        "veilsum ledger export --out ledger.jsonl",
        f"veilsum ledger verify ledger.jsonl --authority authority.pem --head {head}",
        "veilsum ledger report ledger.jsonl --authority authority.pem --out again.html",
    ]


def _listed(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
