"""Core-SVP hardness of LWE: what the best known lattice attacks cost, counted as one call to a solver of shortest vectors.

The primal attack (Albrecht, Göpfert, Virdia, Wunderer 2017; Alkim, Ducas, Pöppelmann, Schwabe 2016, section 6.3): the
lattice of m samples has dimension d = m + n + 1 and holds (e, s, 1), the secret scaled by sigma_e / sigma_s. BKZ with blocks
of b finds it once

    sigma_e sqrt(b) <= delta^(2b - d - 1) V^(1/d),    V = q^m (sigma_e / sigma_s)^n,
    delta = ((pi b)^(1/b) b / (2 pi e))^(1 / (2 (b - 1))),

the least b over all m being the attack's. A call costs 2^(0.292 b) operations, 2^(0.265 b) of a quantum computer: polynomial
factors, memory and the number of calls are left out, so these numbers are below what tables of "128 bits" state.
"""

from __future__ import annotations

import math


def root_hermite(block: int) -> float:
    """delta of BKZ with blocks of this size."""
    return ((math.pi * block) ** (1 / block) * block / (2 * math.pi * math.e)) ** (1 / (2 * (block - 1)))


def primal_block(degree: int, modulus: int, secret: float, error: float, samples: int) -> int:
    """Least block size of the primal attack.

    Args:
        degree: n.
        modulus: q.
        secret, error: standard deviations.
        samples: most that the attacker has.
    """
    log_q, log_scale = math.log(modulus), math.log(error / secret)

    def succeeds(block: int) -> bool:
        log_delta = math.log(root_hermite(block))
        for taken in range(degree // 4, samples + 1, max(1, degree // 512)):
            dimension = taken + degree + 1
            volume = (taken * log_q + degree * log_scale) / dimension
            if math.log(error) + math.log(block) / 2 <= (2 * block - dimension - 1) * log_delta + volume:
                return True
        return False

    low, high = 50, 2 * degree
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if succeeds(middle) else (middle + 1, high)
    return low


def core_svp(block: int) -> tuple[float, float]:
    """Classical and quantum core-SVP hardness in bits."""
    return 0.292 * block, 0.265 * block
