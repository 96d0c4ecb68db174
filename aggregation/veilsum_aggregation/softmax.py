"""Multinomial logistic regression, solved to a guaranteed size of the gradient.

The objective is strongly convex, so a small gradient bounds how far the result is from the minimiser: by |gradient| / ridge.
That bound is what a sensitivity of the minimiser needs; a fit that does not meet its tolerance raises.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers

_NEWTON_STEPS = 200
_CONJUGATE_STEPS = 500
_HALVINGS = 50


@dataclass(frozen=True)
class SoftmaxFit:
    """A fitted head: class probabilities are softmax(x @ weights.T + bias).

    Attributes:
        weights: (K, d).
        bias: (K,).
        gradient_norm: L2 norm of the gradient at the result, at most the tolerance asked for.
        iterations: Newton steps.
    """

    weights: Floats
    bias: Floats
    gradient_norm: float
    iterations: int


def fit_softmax(
    x: Floats, labels: Integers, sample_weights: Floats | None, classes: int, ridge: float, *, tolerance: float
) -> SoftmaxFit:
    """Minimise sum_i w_i CE(y_i, softmax(V x~_i)) + ridge / 2 |V|_F^2 over V (K, d + 1), with x~ = (x, 1).

    Damped Newton steps; each system is solved by conjugate gradients, preconditioned by the Hessian's diagonal block of each
    class, in the subspace where the classes sum to 0, which holds the minimiser. Deterministic. A step costs a few products
    of (n, d) by (d, K), and one of (d, n) by (n, d) per class.

    Args:
        x: (n, d) features; n may be 0.
        labels: (n,) class of each, in [0, K).
        sample_weights: (n,) weights w, not negative; None is 1 each.
        classes: K; classes without samples are allowed.
        ridge: positive, on the bias too.
        tolerance: largest L2 norm of the gradient with respect to V.

    Raises:
        ValueError: shapes, labels or weights do not fit, or are not finite; ridge or tolerance not positive.
        ArithmeticError: the tolerance cannot be met, as where it is below the rounding of the gradient.
    """
    problem = _Problem(x, labels, sample_weights, classes, ridge)
    if not tolerance > 0.0:
        raise ValueError("the tolerance must be positive")
    v = np.zeros((classes, x.shape[1] + 1))
    value, gradient, p = problem.at(v)
    start = size = float(np.linalg.norm(gradient))
    iterations = 0
    while size > tolerance:
        if iterations == _NEWTON_STEPS:
            raise ArithmeticError(f"the gradient is {size:.3g} after {iterations} Newton steps, above {tolerance:.3g}")
        iterations += 1
        direction = _direction(problem, gradient, p, min(0.1, (size / start) ** 0.5, 1.0))
        slope = float(np.sum(gradient * direction))
        step = 1.0
        for _ in range(_HALVINGS):
            trial = problem.at(v + step * direction)
            trial_size = float(np.linalg.norm(trial[1]))
            falls = trial[0] <= value + 1e-4 * step * slope
            # Where the objective no longer tells steps apart in its last bits, the gradient does.
            level = trial[0] <= value + 1e-12 * abs(value) and trial_size < size
            if falls or level:
                break
            step /= 2.0
        else:
            raise ArithmeticError(f"no step makes the gradient of {size:.3g} smaller; the tolerance is {tolerance:.3g}")
        v = v + step * direction
        value, gradient, p = trial
        size = trial_size
    return SoftmaxFit(np.ascontiguousarray(v[:, :-1]), v[:, -1].copy(), size, iterations)


class _Problem:
    """The objective and its derivatives, with the constant feature appended."""

    def __init__(self, x: Floats, labels: Integers, sample_weights: Floats | None, classes: int, ridge: float) -> None:
        n = len(x)
        weights = np.ones(n) if sample_weights is None else np.asarray(sample_weights, dtype=np.float64)
        if x.ndim != 2 or labels.shape != (n,) or weights.shape != (n,) or classes < 1:
            raise ValueError(f"features {x.shape}, labels {labels.shape} and weights {weights.shape} do not fit")
        if not (np.all(np.isfinite(x)) and np.all(np.isfinite(weights) & (weights >= 0.0))):
            raise ValueError("features and weights must be finite, and weights not negative")
        if n and not (int(labels.min()) >= 0 and int(labels.max()) < classes):
            raise ValueError(f"a label is not in 0 .. {classes - 1}")
        if not (ridge > 0.0 and np.isfinite(ridge)):
            raise ValueError("the ridge must be positive")
        self.x = np.column_stack([x.astype(np.float64), np.ones(n)])
        self.weights, self.ridge, self.labels = weights, ridge, labels
        self.rows = np.arange(n)

    def at(self, v: Floats) -> tuple[float, Floats, Floats]:
        """Objective, gradient (K, d + 1) and class probabilities (n, K)."""
        scores = self.x @ v.T
        scores -= scores.max(axis=1, keepdims=True)
        p = np.exp(scores)
        totals = p.sum(axis=1)
        loss = float(self.weights @ (np.log(totals) - scores[self.rows, self.labels]))
        p /= totals[:, None]
        error = p * self.weights[:, None]
        error[self.rows, self.labels] -= self.weights
        return loss + self.ridge / 2.0 * float(np.sum(v * v)), error.T @ self.x + self.ridge * v, p

    def hessian(self, p: Floats) -> Callable[[Floats], Floats]:
        """Product of the Hessian with a direction (K, d + 1)."""
        weighted = p * self.weights[:, None]

        def product(u: Floats) -> Floats:
            moved = self.x @ u.T
            moved -= np.einsum("nk,nk->n", p, moved)[:, None]
            moved *= weighted
            result: Floats = moved.T @ self.x + self.ridge * u
            return result

        return product

    def blocks(self, p: Floats) -> Callable[[Floats], Floats]:
        """Solve with the block of each class: X^T diag(w p_k (1 - p_k)) X + ridge I.

        All in numpy: its linear algebra and scipy's keep threads of their own, which wait for each other on few cores.
        """
        d = self.x.shape[1]
        found = np.empty((p.shape[1], d, d))
        for k in range(p.shape[1]):
            scaled = self.x * np.sqrt(self.weights * p[:, k] * (1.0 - p[:, k]))[:, None]
            np.matmul(scaled.T, scaled, out=found[k])
        # A preconditioner may differ from the block: below this the factor could fail.
        raised = np.maximum(self.ridge, 1e-14 * np.trace(found, axis1=1, axis2=2))
        found += raised[:, None, None] * np.eye(d)
        inverse = np.linalg.inv(np.linalg.cholesky(found))

        def solve(r: Floats) -> Floats:
            half = np.matmul(inverse, r[:, :, None])
            solved: Floats = np.matmul(inverse.transpose(0, 2, 1), half)[:, :, 0]
            return solved

        return solve


def _direction(problem: _Problem, gradient: Floats, p: Floats, share: float) -> Floats:
    """Approximate Newton direction: conjugate gradients until the residual is ``share`` of the gradient."""
    product, solve = problem.hessian(p), problem.blocks(p)

    def precondition(r: Floats) -> Floats:
        z = solve(r)
        z -= z.mean(axis=0)
        return z

    residual = -(gradient - gradient.mean(axis=0))
    stop = share * float(np.linalg.norm(residual))
    direction: Floats = np.zeros_like(residual)
    z = precondition(residual)
    search, rz = z, float(np.sum(residual * z))
    for _ in range(_CONJUGATE_STEPS):
        h = product(search)
        curvature = float(np.sum(search * h))
        if not curvature > 0.0:  # the residual is 0 to the last bit
            break
        length = rz / curvature
        direction = direction + length * search
        residual = residual - length * h
        if float(np.linalg.norm(residual)) <= stop:
            break
        z = precondition(residual)
        last, rz = rz, float(np.sum(residual * z))
        search = z + (rz / last) * search
    return direction
