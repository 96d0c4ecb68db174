"""Who takes part, where the coordinator may choose: a design under which every site has its importance on average.

Beyond FedAVOT, which takes availability as given. K of N sites take part in each round, site i with probability pi_i, and
weighs p_i / pi_i. Its mean weight is then p_i exactly, for any importance p and any K. The probabilities are proportional to p
but for the sites that every round takes, so the weights of a round sum to 1 in every round, not only on average.

Who took part is public, and so are p and pi. The draw protects nothing.
"""

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers

SUM_SLACK = 1e-9
"""How far the importances may be from sum 1, and inclusion probabilities from sum K."""


def inclusion_probabilities(importance: Floats, members: int) -> Floats:
    """pi (N,) with sum K: 1 for the sites C that every round takes, (K - |C|) p_i / (1 - p(C)) for the others.

    C starts empty and takes in each site whose value would be 1 or more, until there is none.

    Args:
        importance: (N,) p, not negative, sum 1. A site of no importance never takes part.
        members: K, from 1 to the number of sites that have importance.

    Raises:
        ValueError: the arguments are not as stated.
    """
    p = np.asarray(importance, dtype=np.float64)
    if p.ndim != 1 or not np.all(np.isfinite(p) & (p >= 0.0)) or abs(p.sum() - 1.0) > SUM_SLACK:
        raise ValueError("importance must be a list of numbers that are not negative and sum to 1")
    if not 1 <= members <= np.count_nonzero(p):
        raise ValueError(f"{members} members cannot be drawn of {np.count_nonzero(p)} sites that have importance")
    always = np.zeros(len(p), dtype=bool)
    while True:
        places, rest = members - np.count_nonzero(always), p[~always].sum()
        if places == 0:
            break
        taken = ~always & (places * p >= rest)
        if not taken.any():
            break
        # At most `places` sites reach the value; equality of all of them is the case in which they fill every place.
        always[np.flatnonzero(taken)[np.argsort(-p[taken], kind="stable")[:places]]] = True
    pi = np.where(always, 1.0, 0.0)
    if places:
        pi[~always] = places * p[~always] / rest
    return pi


def design_weights(importance: Floats, inclusion: Floats) -> Floats:
    """Weights (N,) p_i / pi_i of the sites in the rounds that they take part in, 0 for those that never do.

    Over the members of any round drawn with the pi of :func:`inclusion_probabilities` they sum to 1.
    """
    weights: Floats = np.divide(importance, inclusion, out=np.zeros(len(importance)), where=inclusion > 0.0)
    return weights


def draw_design(inclusion: Floats, members: int, random: np.random.Generator) -> Integers:
    """K different sites, site i among them with probability pi_i: the pivotal method (Deville and Tillé 1998).

    Sites come in random order. Two at a time settle their probabilities a and b between them: if a + b < 1 one gets it all and
    the other is out, else one is in and the other keeps a + b - 1. The chances are such that each keeps its probability on
    average.

    Args:
        inclusion: (N,) pi in [0, 1] with sum K.
        members: K.
        random: decides order and duels.

    Returns:
        (K,) numbers of sites, rising.

    Raises:
        ValueError: the probabilities are outside [0, 1] or do not sum to K.
    """
    pi = np.asarray(inclusion, dtype=np.float64)
    if pi.ndim != 1 or not np.all((pi >= 0.0) & (pi <= 1.0)) or abs(pi.sum() - members) > SUM_SLACK * max(members, 1):
        raise ValueError(f"inclusion probabilities must lie in [0, 1] and sum to {members}")
    chosen = np.flatnonzero(pi == 1.0).tolist()
    undecided = np.flatnonzero((pi > 0.0) & (pi < 1.0))
    random.shuffle(undecided)
    holder, held = -1, 0.0
    for site, coin in zip(undecided.tolist(), random.random(len(undecided)).tolist(), strict=True):
        own, total = float(pi[site]), held + float(pi[site])
        if total < 1.0:
            if coin * total < own:
                holder = site
            held = total
        else:
            # The winner is in; the loser goes on with total - 1. `holder` wins with probability (1 - own) / (2 - total).
            wins = coin * (2.0 - total) < 1.0 - own
            chosen.append(holder if wins else site)
            holder, held = (site if wins else holder), total - 1.0
    if len(chosen) < members:  # what is held is 1 but for rounding
        chosen.append(holder)
    result: Integers = np.sort(np.array(chosen, dtype=np.int64))
    if len(result) != members:
        raise AssertionError("a design of fixed size drew another size")
    return result
