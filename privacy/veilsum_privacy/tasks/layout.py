"""The layout of a task's vector: named blocks, each with its weight."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.mechanism.rows.symbols import Symbol, joined


@dataclass(frozen=True)
class Block:
    """A named part of a task's vector.

    Attributes:
        name: unique in the layout.
        shape: the block's shape once read; its values lie flat, row-major, in the vector.
        weight: every value is multiplied by it before clipping and divided by it after release; a larger weight buys the
            block less noise at the others' cost.
    """

    name: str
    shape: tuple[int, ...]
    weight: float = 1.0

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The blocks of a vector, in order.

    Attributes:
        blocks: each with its values once.
        limbs: vectors that the values are written in, the lowest first: every value is the sum of its limbs, each times
            2^limb_bits of the one below.
        limb_bits: of every limb but the highest.
    """

    blocks: tuple[Block, ...]
    limbs: int = 1
    limb_bits: int = 0

    @property
    def width(self) -> int:
        """Number of values of all blocks."""
        return sum(block.size for block in self.blocks)

    @property
    def size(self) -> int:
        """Number of values of the whole vector."""
        return self.limbs * self.width

    def in_limbs(self, row: Symbol) -> Symbol:
        """Whole values (width,) as (size,); those below the highest lie within -B/2 and B/2, for B = 2^limb_bits."""
        found = []
        for _ in range(self.limbs - 1):
            higher = (row + (1 << self.limb_bits >> 1)) >> self.limb_bits
            found.append(row - higher * (1 << self.limb_bits))
            row = higher
        return joined(*found, row) if found else row

    def joined(self, limbs: Sequence[Floats]) -> Floats:
        """Values (v,) from their limbs, each (v,)."""
        whole = limbs[-1]
        for lower in limbs[-2::-1]:
            whole = whole * 2.0**self.limb_bits + lower
        return whole

    def split(self, vector: Floats) -> dict[str, Floats]:
        """The blocks of a released sum in their own units (weights divided out), by name; of weight 1, views of it."""
        if vector.shape != (self.size,):
            raise ValueError(f"expected a vector of {self.size} values, got shape {vector.shape}")
        vector = self.joined(np.split(vector, self.limbs))
        blocks: dict[str, Floats] = {}
        offset = 0
        for block in self.blocks:
            part = vector[offset : offset + block.size].reshape(block.shape)
            blocks[block.name] = part if block.weight == 1.0 else part / block.weight
            offset += block.size
        return blocks

    def noise_std(self, std: float) -> dict[str, float]:
        """Standard deviation of each block's noise in its own units, for noise of ``std`` on the weighted vector."""
        return {block.name: std / block.weight for block in self.blocks}


def balanced_weights(norms: Sequence[float], sizes: Sequence[int], importances: Sequence[float]) -> tuple[float, ...]:
    """Block weights that minimise the summed, importance-weighted noise variance of a vector at a given cost.

    Block b with weight w_b costs w_b^2 s_b^2 and has noise variance d_b / w_b^2 in its own units, for norm s_b, size d_b and
    importance a_b. The sum of a_b d_b / w_b^2 under a fixed total cost is smallest at w_b^2 = sqrt(a_b d_b) / s_b, that is
    at a share of the budget in proportion to s_b sqrt(a_b d_b). Everything here is public.
    """
    triples = zip(norms, sizes, importances, strict=True)
    return tuple(math.sqrt(math.sqrt(importance * size) / norm) for norm, size, importance in triples)
