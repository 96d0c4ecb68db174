"""Permutation symmetries of networks: channels that may be renumbered together, and their alignment between networks.

The channels of a layer can stand in any order, if all that reads them follows. Networks that were trained apart therefore
disagree about the order, and their average blurs filters that have nothing in common. Filter-wise optimal transport (FOT,
after HFedATM) renumbers the channels of one network so that its filters come to lie on those of a reference. What HFedATM
leaves out: the biases and norms that belong to a channel, and the inputs of the next layers, move with it. So a renumbered
network computes what it computed before.

Names of arrays and axes come from the architecture; nothing here knows a network. Grams of inputs are renumbered here as well,
and used in regmean.py.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.channel_groups import ChannelGroup, GroupMember

Permutation = NDArray[np.intp]

_STAY = 1e-9  # how much nearer a filter counts that already stands in its place, so that ties move nothing


class AlignedGroups(NamedTuple):
    """A network in the order of a reference.

    Attributes:
        arrays: by name, renumbered.
        permutations: by group (size,): channel c is what was channel ``permutations[group][c]``.
        moved: share of all groups' channels that changed their place.
    """

    arrays: dict[str, Floats]
    permutations: dict[str, Permutation]
    moved: float


def check_groups(arrays: Mapping[str, Floats], groups: Sequence[ChannelGroup]) -> None:
    """Check that groups and arrays fit.

    Raises:
        ValueError: a group's name occurs twice, an array or axis is missing or of another length than ``size * repeat``, two
            groups own one axis, the blocks do not divide the channels, or a group produces nothing that could be compared.
    """
    owners: dict[tuple[str, int], str] = {}
    names = [group.name for group in groups]
    if len(set(names)) != len(names):
        raise ValueError(f"names of groups must differ: {names}")
    for group in groups:
        if group.size < 1 or group.blocks < 1 or group.size % group.blocks:
            raise ValueError(f'group "{group.name}" has {group.size} channels, which {group.blocks} blocks do not divide')
        for member in (*group.produced, *group.consumed):
            if member.array not in arrays:
                raise ValueError(f'group "{group.name}" names the array "{member.array}", which does not exist')
            shape = arrays[member.array].shape
            if not 0 <= member.axis < len(shape) or member.repeat < 1 or shape[member.axis] != group.size * member.repeat:
                raise ValueError(
                    f'axis {member.axis} of "{member.array}" {shape} does not hold {group.size} channels of {member.repeat}'
                )
            owner = owners.setdefault((member.array, member.axis), group.name)
            if owner != group.name or sum(other[:2] == member[:2] for other in (*group.produced, *group.consumed)) > 1:
                raise ValueError(f'axis {member.axis} of "{member.array}" is named twice, by "{owner}" and "{group.name}"')
        if not _filters(arrays, group):
            raise ValueError(f'group "{group.name}" produces no weights of two or more axes to compare')


def convolutions(arrays: Mapping[str, Floats], groups: Sequence[ChannelGroup]) -> tuple[ChannelGroup, ...]:
    """The groups that convolutions produce: those that HFedATM aligns. The others are units of linear layers."""
    return tuple(group for group in groups if any(arrays[member.array].ndim > 2 for member in group.produced))


def places(permutation: Permutation, repeat: int) -> Permutation:
    """Permutation (size * repeat,) of an axis, from that of its channels (size,).

    Raises:
        ValueError: not a permutation of 0 .. size - 1.
    """
    size = len(permutation)
    if permutation.ndim != 1 or not np.array_equal(np.sort(permutation), np.arange(size)):
        raise ValueError(f"not a permutation of {size} channels")
    result: Permutation = (permutation.astype(np.intp)[:, None] * repeat + np.arange(repeat)).ravel()
    return result


def permute_gram(gram: Floats, member: GroupMember, permutation: Permutation) -> Floats:
    """The Gram (m, m) of a layer's inputs after these were renumbered, of the axis that ``member`` describes.

    Rows and columns move alike. What stands behind the channels, as the appended one does, keeps its place.

    Raises:
        ValueError: the Gram is not square, or has fewer rows than there are places of channels.
    """
    order = places(permutation, member.repeat)
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or len(gram) < len(order):
        raise ValueError(f"a Gram {gram.shape} has no {len(order)} inputs to renumber")
    order = np.concatenate([order, np.arange(len(order), len(gram))])
    result: Floats = gram[np.ix_(order, order)]
    return result


def weighted_mean(models: Sequence[Mapping[str, Floats]], counts: Sequence[float]) -> dict[str, Floats]:
    """The mean of networks with the same arrays, each with the weight of its count.

    Raises:
        ValueError: no networks, arrays that differ in name or shape, or counts that are not positive, one a network.
    """
    if not models or len(counts) != len(models) or not all(0.0 < count < np.inf for count in counts):
        raise ValueError(f"{len(models)} networks cannot be averaged with the counts {list(counts)}")
    first = models[0]
    for model in models[1:]:
        if model.keys() != first.keys() or any(model[name].shape != first[name].shape for name in first):
            raise ValueError("networks of different architectures cannot be averaged")
    shares = np.asarray(counts, dtype=np.float64) / float(np.sum(counts))
    return {name: np.tensordot(shares, np.stack([model[name] for model in models]), axes=1) for name in first}


def align_filters(
    arrays: Mapping[str, Floats], reference: Mapping[str, Floats], groups: Sequence[ChannelGroup], entropy: float = 0.0
) -> AlignedGroups:
    """Renumber a network's channels so that its filters come to lie on the reference's, layer by layer (HFedATM's FOT).

    A filter is all that one channel's weights are, flattened and divided by its norm; the cost of a place is the squared
    distance there, in the mean over the weights that produce the group, and the assignment is the cheapest one. A layer is
    compared after its inputs were renumbered. Around a residual stream that is not possible for all its layers: the groups
    come in the order in which most is settled, the given order among equals, and weights whose inputs are not settled yet have
    no say unless there are no others. Ties move nothing, so a network stays as it is where that is among the best.

    Args:
        arrays: the network; not changed.
        reference: of the same architecture.
        groups: its symmetries.
        entropy: 0 for the exact assignment; or the weight of the entropy in a plan (Sinkhorn, by POT in log domain), in units
            of the cost, which lies in [0, 4]. It is rounded to the permutation that it favours.

    Raises:
        ValueError: groups and arrays do not fit, or arrays hold what is not finite.
    """
    if not 0.0 <= entropy < np.inf:
        raise ValueError(f"the entropy's weight must be a number from 0 on, not {entropy}")
    check_groups(arrays, groups)
    check_groups(reference, groups)
    result = dict(arrays)
    permutations: dict[str, Permutation] = {}
    waiting = list(groups)
    while waiting:
        readers = {member.array for group in waiting for member in group.consumed}
        group = max(waiting, key=lambda item: _settled(arrays, item, readers))  # the first of several
        waiting.remove(group)
        filters = _filters(arrays, group)
        ready = [member for member in filters if member.array not in readers] or filters
        cost = np.mean([_distances(reference, result, member, group.size) for member in ready], axis=0)
        permutations[group.name] = _assign(cost, group.blocks, entropy)
        renumber(result, group, permutations[group.name])
    moved = sum(int(np.sum(order != np.arange(len(order)))) for order in permutations.values())
    return AlignedGroups(result, permutations, moved / max(sum(group.size for group in groups), 1))


def _filters(arrays: Mapping[str, Floats], group: ChannelGroup) -> list[GroupMember]:
    """The produced weights; biases and norms have one axis and are carried along."""
    return [member for member in group.produced if arrays[member.array].ndim > 1]


def _settled(arrays: Mapping[str, Floats], group: ChannelGroup, readers: Collection[str]) -> int:
    """2 if the inputs of all its filters are in their final order, 1 if those of some are, else 0."""
    ready = [member.array not in readers for member in _filters(arrays, group)]
    return int(any(ready)) + int(all(ready))


def renumber(arrays: dict[str, Floats], group: ChannelGroup, permutation: Permutation) -> None:
    """Move a group's channels to other places, in place: channel c becomes what was ``permutation[c]``.

    Raises:
        ValueError: the permutation does not fit the group, or tears a block apart.
    """
    if len(permutation) != group.size:
        raise ValueError(f'a permutation of {len(permutation)} does not fit the {group.size} channels of "{group.name}"')
    moves = [(member, places(permutation, member.repeat)) for member in (*group.produced, *group.consumed)]
    block = group.size // group.blocks
    origin = np.asarray(permutation).reshape(group.blocks, block) // block
    if np.any(origin != origin[:, :1]):
        raise ValueError(f'the permutation of "{group.name}" tears a block of its norm apart')
    for member, order in moves:
        arrays[member.array] = np.take(arrays[member.array], order, axis=member.axis)


def _distances(reference: Mapping[str, Floats], arrays: Mapping[str, Floats], member: GroupMember, size: int) -> Floats:
    """Squared distances (size, size) of normalised filters, the reference's by row; a filter of zeros stays one."""
    units = []
    for model in (reference, arrays):
        flat = np.moveaxis(np.asarray(model[member.array], dtype=np.float64), member.axis, 0).reshape(size, -1)
        if not np.isfinite(flat).all():
            raise ValueError(f'"{member.array}" is not finite')
        largest = np.abs(flat).max(axis=1, keepdims=True)
        flat = flat / np.where(largest > 0.0, largest, 1.0)  # so that no square under- or overflows
        norm = np.linalg.norm(flat, axis=1, keepdims=True)
        units.append(flat / np.where(norm > 0.0, norm, 1.0))
    a, b = units
    result: Floats = np.sum(a * a, axis=1)[:, None] + np.sum(b * b, axis=1)[None, :] - 2.0 * (a @ b.T)
    return result


def _assign(cost: Floats, blocks: int, entropy: float) -> Permutation:
    """The cheapest permutation that maps blocks onto blocks: within every pair of blocks first, then between blocks."""
    cost = cost - _STAY * np.eye(len(cost))
    block = len(cost) // blocks
    if block == 1 or blocks == 1:
        return _solve(cost, entropy)
    within = np.empty((blocks, blocks, block), dtype=np.intp)
    between = np.empty((blocks, blocks))
    for place in np.ndindex(blocks, blocks):
        part = cost.reshape(blocks, block, blocks, block)[place[0], :, place[1], :]
        within[place] = _solve(part, entropy)
        between[place] = part[np.arange(block), within[place]].sum()
    outer = _solve(between / block, entropy)
    result: Permutation = (outer[:, None] * block + within[np.arange(blocks), outer]).ravel()
    return result


def _solve(cost: Floats, entropy: float) -> Permutation:
    if entropy > 0.0 and len(cost) > 1:
        import ot  # here, because it takes seconds and is an option

        share = np.full(len(cost), 1.0 / len(cost))
        cost = -ot.sinkhorn(share, share, cost, entropy, method="sinkhorn_log", numItermax=500, stopThr=1e-6, warn=False)
    from scipy.optimize import linear_sum_assignment  # slow to import, and sites only need the groups' names

    result: Permutation = linear_sum_assignment(cost)[1].astype(np.intp)
    return result
