"""Fusing linear layers by the second moments of their inputs, and the whole merge of stations' networks (HFedATM).

RegMean looks for the one layer that stands nearest to all stations' layers on the inputs that each station saw:
min_W sum_e |X_e W - X_e W_e|_F^2, which needs of the inputs only the Grams G_e = X_e^T X_e. Shrinkage stands on both sides of
the solution, so that equal layers stay what they are. All of it is post-processing of released sums: no record is read here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.channel_groups import ChannelGroup, GroupMember
from veilsum_aggregation.filters import Permutation, align_filters, permute_gram, weighted_mean
from veilsum_aggregation.shrinkage import project_psd

RIDGE = 1e-6
"""The ridge of a layer whose Grams carry no noise, as a share of their mean diagonal: enough for inputs that are always 0."""


@dataclass(frozen=True)
class Merged:
    """A server's network of its stations' networks.

    Attributes:
        arrays: by name.
        moved: share of the channels of all stations but the first that FOT renumbered; 0 without FOT.
        permutations: by station, and then by group as in :class:`~veilsum_aggregation.filters.Aligned`; empty without FOT.
        ridges: by linear layer, what RegMean took; empty without RegMean.
    """

    arrays: dict[str, Floats]
    moved: float
    permutations: tuple[dict[str, Permutation], ...]
    ridges: dict[str, float]


def noise_ridge(sigma: float, clip: float, inputs: int, stations: int) -> float:
    """The spectral size of the noise in a sum of Grams: sigma C^2 sqrt(2 m E).

    It is the edge 2 s sqrt(m) of the spectrum of a symmetric matrix whose off-diagonal entries have standard deviation
    s = sigma C^2 sqrt(E / 2): that of a diagonal entry over sqrt 2, as where the off-diagonals are released at weight sqrt 2.

    Args:
        sigma: noise multiplier of one station's sum, with all the noise that is in it.
        clip: C, the largest norm of one record's inputs, the appended one among them.
        inputs: m, rows of the Gram.
        stations: E.

    Raises:
        ValueError: one of them is negative.
    """
    if not (sigma >= 0.0 and clip >= 0.0 and inputs >= 0 and stations >= 0):
        raise ValueError("noise has no negative size")
    return sigma * clip**2 * math.sqrt(2.0 * inputs * stations)


def shrink_gram(gram: Floats, alpha: float) -> Floats:
    """a G + (1 - a) diag(G), of a Gram G (m, m)."""
    result: Floats = alpha * gram
    np.fill_diagonal(result, np.diag(gram))
    return result


def regmean(
    weights: Sequence[Floats],
    grams: Sequence[Floats],
    alpha: float = 0.75,
    ridge: float | None = None,
    *,
    average: Floats | None = None,
) -> Floats:
    """The linear layer nearest to the stations' layers on their own inputs: shrinkage-aware RegMean (HFedATM).

    W = (sum_e G~_e + r I)^-1 (sum_e G~_e W_e + r A) with G~ = a G + (1 - a) diag(G) and W transposed to (m, out). It minimises
    sum_e tr((W - W_e)^T G~_e (W - W_e)) + r |W - A|_F^2. Solved for W - A by Cholesky, so that equal layers return unchanged
    and a large ridge returns A to the last digit.

    Args:
        weights: W_e^T (out, m) each; with a bias as the last column where the Grams have the appended one as last row.
        grams: G_e (m, m) each, raw sums over records, positive semidefinite: project noised ones first.
        alpha: share of the off-diagonals that is kept, in [0, 1].
        ridge: r, in the units of the Grams; at least :func:`noise_ridge` where they carry noise. None: 1e-6 of their mean
            diagonal.
        average: A (out, m), what the ridge draws to; None for the plain mean.

    Returns:
        W^T (out, m).

    Raises:
        ValueError: shapes do not fit, an entry is not finite, alpha or the ridge is out of range, or no ridge keeps the system
            from being singular.
    """
    from scipy.linalg import cho_factor, cho_solve  # a fifth of what a coordinator takes to start

    _check(weights, grams, alpha, ridge)
    centre: Floats = np.mean(np.stack(weights), axis=0) if average is None else np.asarray(average, dtype=np.float64)
    if centre.shape != weights[0].shape or not np.isfinite(centre).all():
        raise ValueError(f"an average {centre.shape} does not fit layers {weights[0].shape}, or is not finite")
    size = len(grams[0])
    total, right = np.zeros((size, size)), np.zeros((size, len(centre)))
    for weight, gram in zip(weights, grams, strict=True):
        shrunk = shrink_gram((gram + gram.T) / 2.0, alpha)
        total += shrunk
        right += shrunk @ (weight - centre).T
    scale = float(np.trace(total)) / size
    if ridge is None:
        ridge = RIDGE * scale if scale > 0.0 else 1.0
    total[np.diag_indices(size)] += ridge
    try:
        difference = cho_solve(cho_factor(total, lower=True), right)
    except np.linalg.LinAlgError:
        raise ValueError("the Grams are singular, or not positive semidefinite: raise the ridge, or project them") from None
    result: Floats = centre + difference.T
    return result


def merge_stations(
    models: Sequence[Mapping[str, Floats]],
    grams: Sequence[Mapping[str, Floats]] | None,
    counts: Sequence[float],
    groups: Sequence[ChannelGroup],
    linear_layers: Sequence[str],
    *,
    filters: bool,
    regmean: bool,
    alpha: float = 0.75,
    ridge: float = 0.0,
    noise_std: Mapping[str, Sequence[float]] | None = None,
    entropy: float = 0.0,
    turned: bool = False,
) -> Merged:
    """One network of the stations' networks: FOT towards the first one, the mean by counts, RegMean for the linear layers.

    Args:
        models: arrays by name, of each station.
        grams: by linear layer, of each station: (m, m) raw sums over its records of the products of the layer's inputs, with
            an appended one (or whatever the bias is multiplied by) as last input, whether or not the layer has a bias. None
            only without RegMean.
        counts: weights of the stations in the mean, as their numbers of clients.
        groups: symmetries of the network.
        linear_layers: L of "L.weight" (out, m - 1) and, where the layer has a bias, "L.bias" (out,).
        filters: whether to do FOT; otherwise channels stay as they stand.
        regmean: whether to fuse linear layers by their Grams; otherwise they are averaged.
        alpha: see :func:`regmean`.
        ridge: as a share of the Grams' mean diagonal; at least what the noise asks for.
        noise_std: by linear layer, the standard deviation sigma C^2 of the noise on a diagonal entry of each station's Gram;
            off-diagonal ones have it over sqrt 2. Layers without one, and None, are free of noise. A noised Gram is projected
            on the cone, and the ridge is the noise's spectral size, or 1e-6 of the mean diagonal if that is more.
        entropy: see :func:`~veilsum_aggregation.filters.align_filters`.
        turned: whether the Grams are of inputs that are renumbered already, as those in the mean of the renumbered models.

    Raises:
        ValueError: the arguments do not fit one another, or an entry is not finite.
    """
    aligned: list[dict[str, Floats]] = [dict(model) for model in models]
    permutations: tuple[dict[str, Permutation], ...] = tuple({} for _ in models)
    moved = 0.0
    if filters and len(models) > 1:
        found = [align_filters(model, models[0], groups, entropy) for model in models[1:]]
        aligned[1:] = [one.arrays for one in found]
        permutations = ({}, *(one.permutations for one in found))
        moved = math.fsum(one.moved for one in found) / len(found)
    arrays, ridges = weighted_mean(aligned, counts), {}
    if regmean:
        for layer in linear_layers:
            if grams is None or len(grams) != len(models) or any(layer not in station for station in grams):
                raise ValueError(f'RegMean needs a Gram of the inputs of "{layer}" from each station')
            inputs = {group.name: m for group in groups for m in group.consumed if m[:2] == (f"{layer}.weight", 1)}
            orders = [{} for _ in models] if turned else permutations
            own = [_turn(station[layer], inputs, order) for station, order in zip(grams, orders, strict=True)]
            noise = (noise_std or {}).get(layer)
            fused, ridges[layer] = _fuse(layer, aligned, arrays, own, alpha, noise, ridge)
            arrays.update(fused)
    return Merged(arrays, moved, permutations, ridges)


def _turn(gram: Floats, inputs: Mapping[str, GroupMember], permutations: Mapping[str, Permutation]) -> Floats:
    """A Gram after the groups that a layer reads were renumbered."""
    for group, member in inputs.items():
        if group in permutations:
            gram = permute_gram(gram, member, permutations[group])
    return gram


def _fuse(
    layer: str,
    models: Sequence[Mapping[str, Floats]],
    average: Mapping[str, Floats],
    grams: Sequence[Floats],
    alpha: float,
    noise: Sequence[float] | None,
    share: float,
) -> tuple[dict[str, Floats], float]:
    """The fused arrays of one layer, and the ridge."""
    weight, bias = f"{layer}.weight", f"{layer}.bias"
    if weight not in average or average[weight].ndim != 2:
        raise ValueError(f'"{layer}" is not a linear layer: it has no matrix "{weight}"')
    size = average[weight].shape[1]
    if any(gram.shape != (size + 1, size + 1) for gram in grams):
        raise ValueError(f'Grams of "{layer}" must be ({size + 1}, {size + 1}), not {[gram.shape for gram in grams]}')
    ridge = 0.0
    if noise is not None:
        if len(noise) != len(grams) or not all(0.0 <= std < math.inf for std in noise):
            raise ValueError(f'noise of "{layer}" must have one standard deviation a station')
        grams = [_projected(gram) if std > 0.0 else gram for gram, std in zip(grams, noise, strict=True)]
        ridge = noise_ridge(math.hypot(*noise), 1.0, size + 1, 1)  # noise of different sizes adds up in squares
    biased = bias in average
    if not biased:
        grams = [gram[:-1, :-1] for gram in grams]
    diagonal = math.fsum(float(np.trace(gram)) for gram in grams) / len(grams[0])
    ridge = max(ridge, max(share, RIDGE) * diagonal) or 1.0
    rows = [_rows(model, weight, bias if biased else None) for model in (*models, average)]
    fused = regmean(rows[:-1], grams, alpha, ridge, average=rows[-1])
    return ({weight: fused[:, :-1].copy(), bias: fused[:, -1].copy()} if biased else {weight: fused}), ridge


def _projected(gram: Floats) -> Floats:
    if not np.isfinite(gram).all():
        raise ValueError("a Gram must be finite")
    return project_psd(gram)


def _rows(model: Mapping[str, Floats], weight: str, bias: str | None) -> Floats:
    """The layer as one matrix (out, m), its bias last."""
    matrix = np.asarray(model[weight], dtype=np.float64)
    return matrix if bias is None else np.column_stack([matrix, model[bias]])


def _check(weights: Sequence[Floats], grams: Sequence[Floats], alpha: float, ridge: float | None) -> None:
    if not weights or len(grams) != len(weights):
        raise ValueError(f"{len(weights)} layers and {len(grams)} Grams do not fit")
    shape = weights[0].shape
    for weight, gram in zip(weights, grams, strict=True):
        if weight.ndim != 2 or weight.shape != shape or gram.shape != (shape[1], shape[1]):
            raise ValueError(f"a layer {weight.shape} and a Gram {gram.shape} do not fit")
        if not (np.isfinite(weight).all() and np.isfinite(gram).all()):
            raise ValueError("layers and Grams must be finite")
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha must lie in [0, 1], not {alpha}")
    if ridge is not None and not 0.0 <= ridge < math.inf:
        raise ValueError(f"a ridge must not be negative, nor infinite: {ridge}")
