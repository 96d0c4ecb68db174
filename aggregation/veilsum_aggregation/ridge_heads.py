"""A softmax head's first step of Newton's method, from class moments; numpy alone, for sites compute it as they start."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from veilsum_aggregation import moments
from veilsum_aggregation.arrays import Floats


@dataclass(frozen=True)
class RidgeHead:
    """A head of all classes from one site's class moments.

    Attributes:
        weights: (K, d), whose rows add up to 0, as do biases.
        bias: (K,).
        noise: the squared norm that noise is expected to have in ``weights``, to first order.
    """

    weights: Floats
    bias: Floats
    noise: float


def ridge_head(
    blocks: Mapping[str, Floats], noise: Mapping[str, float], *, ridge: float, bias: float, prior: float
) -> RidgeHead | None:
    """The first step of Newton's method towards a softmax head, from zero: a function of class moments.

    At V = 0 the gradient of sum CE(y, softmax(V x~)) with x~ = (x, b) is -N, N = sum (e_y - 1 / K) x~^T, and its second
    derivative A / K along all V whose rows add up to 0, A = sum x~ x~^T. So the step is V = K N (A + lambda I)^-1: K times the
    ridge regression of the classes' indicators, less their mean (Hastie et al., Elements, section 4.2). lambda is n times
    the ridge, and under noise the largest eigenvalue that noise alone tends to have in sum x x^T, halved:
    s sqrt(d) for a standard deviation of s on the diagonal. A is projected on the positive semidefinite matrices first.
    To first order noise changes V by (dN - V dA) (A + lambda I)^-1. With M that inverse and symmetric noise of variance s^2
    beside the diagonal and 2 s^2 on it, the mean of |V dA M|^2 is s^2 (|V|^2 |M|^2 + |V M|^2).

    The constant only takes up what the classes' frequencies explain; its weights are held back by the ridge where features
    are not centred, and are not the biases. Biases are such that at the records' mean the score of a class with a share p of
    the records is ``prior`` (K p - 1), which with 1 is the step of an intercept that no ridge holds back.

    Args:
        blocks: ``counts`` (K,), ``sums`` (K, d), and second moments, ``squares`` (d,) and ``products`` (d (d - 1) / 2,).
        noise: standard deviation of one entry of each block; an absent name is 0.
        ridge: positive; against a mean over records, in the features' unit squared.
        bias: b, the value of the constant beside the features.
        prior: how far a class's frequency at the site is a vote for it, in [0, 1].

    Returns:
        None where all records together are within the noise.
    """
    counts, sums = blocks["counts"], blocks["sums"]
    (k, d), counts_std, sums_std = sums.shape, noise.get("counts", 0.0), noise.get("sums", 0.0)
    number = float(counts.sum())
    if moments.within_noise(number, counts_std * k**0.5):
        return None
    total = np.append(sums.sum(axis=0) * bias, number * bias**2)
    gram = np.zeros((d + 1, d + 1))
    gram[:d, :d] = moments.symmetric(blocks["squares"], blocks.get("products", np.zeros(0)))
    gram[d], gram[:, d] = total, total
    penalty = number * ridge + noise.get("squares", 0.0) * d**0.5
    values, vectors = np.linalg.eigh(gram)
    inverse = (vectors / (np.maximum(values, 0.0) + penalty)) @ vectors.T
    each = np.column_stack([sums, counts * bias])
    found = k * (each - each.mean(axis=0)) @ inverse
    spread, squares = inverse[:, :d] ** 2, float((found[:, :d] ** 2).sum())
    of_sums = k**2 * (k - 1) * (sums_std**2 * spread[:d].sum() + (bias * counts_std) ** 2 * spread[d].sum())
    of_second = (
        noise.get("squares", 0.0) ** 2 / 2.0 * (squares * spread[:d].sum() + ((found[:, :d] @ inverse[:d, :d]) ** 2).sum())
    )
    of_totals = k * (bias * sums_std) ** 2 * (squares * spread[d].sum() + (found[:, d] ** 2).sum() * spread[:d].sum())
    weights = found[:, :d]
    biases: Floats = prior * (k * counts / number - 1.0) - weights @ sums.sum(axis=0) / number
    return RidgeHead(weights, biases - biases.mean(), float(of_sums + of_second + of_totals))
