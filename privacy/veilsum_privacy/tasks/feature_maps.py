"""From a record's scaled columns to the features that a task clips: a frozen encoder, then the site's alignment.

Both are maps that no clear record has touched: they come from a broadcast, that is from released sums, from a
file that every site has, or from the site's own noised statistic. So a record is mapped by what is, for its privacy, a
constant, and is clipped afterwards. Maps are traced on symbols, as rows are, and meet no record; a program is an opaque map.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.gaussian import AffineMap
from veilsum_aggregation.moment_maps import MomentMap
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.computation.declared import ENCODER as ENCODER
from veilsum_privacy.computation.declared import Encode as Encode
from veilsum_privacy.computation.declared import mapped_records
from veilsum_privacy.mechanism.rows.evaluation import Evaluation, OpaqueMap
from veilsum_privacy.mechanism.rows.symbols import (
    Record,
    Symbol,
    affine,
    by_moments,
    clip,
    cos,
    drawn,
    every,
    finite,
    hash_is_low,
    joined,
    lookup,
    opaque,
    record_of,
    spread,
    symbol,
    traced,
    where,
    whole,
)
from veilsum_privacy.study.encoder import Program, Projection, RandomFeatures
from veilsum_privacy.study.projections import projection_digest
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.parameters import Alignment, FeatureParameters, Part, PartParameters
from veilsum_privacy.tasks.power_moments import columns_of_moments

ENCODER_MATRIX, ENCODER_OFFSET = "encoder.matrix", "encoder.offset"
ALIGNMENT_MATRIX, ALIGNMENT_OFFSET = "alignment.matrix", "alignment.offset"
ALIGNMENT_SCALE = "alignment.scale"
SALT = "alignment.salt"
REFERENCE = "reference."
"""Names of broadcast arrays; those of a reference begin with the last."""

NOTHING_KEPT = "The site kept no statistic to make its alignment from."


@dataclass(frozen=True)
class FeatureMap:
    """What a site makes of a record before a task sees it.

    Attributes:
        study: whose encoder is applied.
        broadcast: arrays that everyone received.
        index: the site's place among the study's participants.
        kept, noise_std: blocks of the site's kept statistic and their noise, for an alignment that the site makes.
        encode: the study's program; None where there is none, and where records come encoded.
    """

    study: Study
    parameters: FeatureParameters
    broadcast: Mapping[str, Floats]
    index: int = 0
    kept: Mapping[str, Floats] | None = field(default=None, repr=False)
    noise_std: Mapping[str, float] | None = field(default=None, repr=False)
    encode: Encode | None = field(default=None, repr=False)

    @property
    def plain(self) -> bool:
        """Whether records are left as they are."""
        return self.parameters.width is None and self.parameters.alignment is None and self._part == "all"

    @property
    def width(self) -> int:
        """Features of the records as they come: those of the schema, or what a program made of them before."""
        encoder = self.study.encoder
        return encoder.width if isinstance(encoder, Program) and self.encode is None else self.study.data.width

    @property
    def maps(self) -> Mapping[str, OpaqueMap]:
        """The opaque maps of its graph, by name."""
        by_program = self.encode is not None and isinstance(self.study.encoder, Program) and self.parameters.width is not None
        return {ENCODER: self.encode} if by_program and self.encode is not None else {}

    @property
    def _part(self) -> Part:
        return self.parameters.part if isinstance(self.parameters, PartParameters) else "all"

    def __call__(self, record: Record) -> tuple[Record, Symbol]:
        """A record as the task sees it, and whether it is of the task's part of the records.

        Alignment by moments maps each feature by itself and leaves the schema's own in their box: values present are cut to
        [-1, 1] before and after it, absent ones stay absent.

        Raises:
            HostileInput: an array is missing, has the wrong shape, or is not the one that the study names.
            Misuse: the site makes its own alignment and has kept no statistic.
        """
        taken = symbol(np.True_)
        if self._part != "all" and isinstance(self.parameters, PartParameters):
            share = float(self.parameters.part_share)
            # The salt of a draw of a site is another, so that no part is of some sites' maps alone.
            taken = drawn(record, self._salt(0)) < share if self.parameters.resplit else hash_is_low(record, share)
            taken = taken if self._part == "statistics" else ~taken
        return (self._in_box(record) if self.parameters.width is None else self._made(record, self.parameters.width)), taken

    def _made(self, record: Record, width: int) -> Record:
        """The features that an encoder and an alignment make, there as a whole or not at all."""
        parameters, encoder = self.parameters, self.study.encoder
        x = where(record.present, record.features, 0.0)
        there = every(finite(x))
        if parameters.missing == "skip":
            there = there & every(record.present)
        x = where(there, x, 0.0)
        if isinstance(encoder, Projection):
            matrix = _array(self.broadcast, ENCODER_MATRIX, (encoder.width, encoder.inputs))
            offset = _array(self.broadcast, ENCODER_OFFSET, (encoder.width,))
            if projection_digest(matrix, offset) != encoder.sha256:
                raise HostileInput("The projection in the broadcast is not the one that the study names.")
            x = affine(clip(x, -1.0, 1.0), matrix, offset)
        elif isinstance(encoder, RandomFeatures):
            x = cos(affine(clip(x, -1.0, 1.0), *waves(encoder))) * height(encoder)
        elif isinstance(encoder, Program) and self.maps:
            x = opaque(ENCODER, clip(x, -1.0, 1.0), encoder.width)
        if x.shape[0] != width:
            raise HostileInput(f"The features have {x.shape[0]} dimensions; the task takes {width}.")
        if parameters.alignment is not None and parameters.alignment.moments is not None:
            bound = parameters.alignment.moments.bound
            x = self._by_moments(record, x / bound, width) * bound
        else:
            own = _alignment(parameters, self.broadcast, self.study.sites, self.index, self.kept, self.noise_std)
            if own is not None:
                x = affine(x, *own)
        there = there & every(finite(x))
        return Record(where(there, x, 0.0), spread(there, width), record.label)

    def _in_box(self, record: Record) -> Record:
        """The schema's own features, aligned by moments if at all."""
        alignment = self.parameters.alignment
        if alignment is None:
            return record
        moments = alignment.moments
        columns = columns_of_moments(self.study.data, None, None if moments is None else moments.channels)
        features = clip(record.features, -1.0, 1.0)
        moved = clip(self._by_moments(record, features[columns], len(columns)), -1.0, 1.0)
        order = np.arange(self.study.data.width)
        order[columns] = self.study.data.width + np.arange(len(columns))
        return record._replace(features=where(record.present, joined(features, moved)[order], 0.0))

    def _by_moments(self, record: Record, x: Symbol, features: int) -> Symbol:
        """So many features of a record, each mapped by itself: as the site's kept moments say, or as the broadcast does."""
        alignment = self.parameters.alignment
        use = None if alignment is None else alignment.moments
        if alignment is None or use is None or alignment.kind != "broadcast":
            return by_moments(x, self._moment_map(features))
        m = use.channels or features
        scale, offset = (_array(self.broadcast, name, (self.study.sites, m)) for name in (ALIGNMENT_SCALE, ALIGNMENT_OFFSET))
        if not np.isfinite(scale).all() or not np.isfinite(offset).all():
            raise HostileInput("The broadcast holds a map that is not finite.")
        # A draw is below 1 - 2^-53, so its product with the number of sites is below that number.
        place = whole(drawn(record, self._salt(1)) * float(self.study.sites)) if use.drawn else symbol(np.int64(self.index))
        own = [symbol(lookup(table, place)).reshape(m, 1) for table in (scale, offset)]
        return (x.reshape(m, features // m) * own[0] + own[1]).reshape(features)

    def _salt(self, place: int) -> int:
        """One of the two salts of the round: of parts, and of draws."""
        salts = _array(self.broadcast, SALT, (2,))
        if not (np.isfinite(salts).all() and (salts >= 0.0).all() and (salts < 2.0**53).all()):
            raise HostileInput("The broadcast holds a salt that is none.")
        return int(salts[place])

    def _moment_map(self, features: int) -> MomentMap:
        """The site's map of so many features by their moments."""
        alignment = self.parameters.alignment
        use = None if alignment is None else alignment.moments
        if alignment is None or use is None:
            raise HostileInput("The schema's own features are aligned by moments only.")
        if self.kept is None or self.noise_std is None:
            raise Misuse(NOTHING_KEPT)
        from veilsum_aggregation.moment_alignment import local_map  # few studies align features

        try:
            own = local_map(self.kept, self.noise_std, self.broadcast, order=use.order, adjust=use.adjust, tau=alignment.tau)
        except (KeyError, ValueError, ArithmeticError) as error:
            raise HostileInput("The broadcast holds no reference for the alignment by moments.") from error
        if len(own.centre) != (use.channels or features):
            raise HostileInput("The reference of the alignment by moments is of other features.")
        return own


def waves(encoder: RandomFeatures) -> tuple[Floats, Floats]:
    """W (width, inputs) of random features, normal of variance 2 gamma, row by row; and b (width,), even in [0, 2 pi).

    SHAKE-256 of the label, width, inputs and seed, the numbers as 8 bytes, gives words of 64 bits, little-endian. Their upper
    53 bits k make u = (k + 1/2) / 2^53. Of the first 2 width inputs of them the halves u and u' make W by Box and Muller,
    sqrt(-2 log u) cos(2 pi u'); then come those of b.
    """
    count = encoder.width * encoder.size
    stated = np.array([encoder.width, encoder.size, encoder.seed], dtype="<u8").tobytes()
    stream = hashlib.shake_256(b"veilsum/1/random-features" + stated).digest(8 * (2 * count + encoder.width))
    u = ((np.frombuffer(stream, dtype="<u8") >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    normal = np.sqrt(-2.0 * np.log(u[:count])) * np.cos(2.0 * np.pi * u[count : 2 * count])
    spread = math.sqrt(2.0 * float(encoder.gamma or 0.0))
    return (spread * normal).reshape(encoder.width, encoder.size), 2.0 * np.pi * u[2 * count :]


def height(encoder: RandomFeatures) -> float:
    """What the cosines of random features are multiplied by."""
    return math.sqrt(2.0 / encoder.width)


def map_records(
    study: Study,
    parameters: FeatureParameters,
    records: Records,
    broadcast: Mapping[str, Floats],
    *,
    index: int,
    kept: Mapping[str, Floats] | None = None,
    noise_std: Mapping[str, float] | None = None,
    encode: Encode | None = None,
    note: Callable[[Exception], object] = lambda _: None,
) -> Records:
    """The records that a task computes on, of the part that it takes, as :class:`FeatureMap` has them.

    Args:
        records: as the schema gives them; already encoded if the study's encoder is a program and ``encode`` is None.
        study, parameters, broadcast, index, kept, noise_std, encode: as of :class:`FeatureMap`.
        note: is told what the program raised first.

    Raises:
        HostileInput, Misuse: as of :class:`FeatureMap`.
    """
    mapping = FeatureMap(study, parameters, broadcast, index, kept, noise_std, encode)
    if mapping.plain:
        return records
    given = record_of(records.features.shape[1], labelled=records.labels is not None)
    record, taken = mapping(given)
    evaluation = Evaluation(traced(joined(record.features, record.present, taken)), mapping.maps)
    return mapped_records(evaluation, records, note)


def _alignment(
    parameters: FeatureParameters,
    broadcast: Mapping[str, Floats],
    sites: int,
    index: int,
    kept: Mapping[str, Floats] | None,
    noise_std: Mapping[str, float] | None,
) -> tuple[Floats, Floats] | None:
    """Matrix and offset of the site's alignment; None for none."""
    alignment, width = parameters.alignment, parameters.width or 0
    if alignment is None:
        return None
    if alignment.kind == "broadcast":
        matrices = _array(broadcast, ALIGNMENT_MATRIX, (sites, width, width))
        return matrices[index], _array(broadcast, ALIGNMENT_OFFSET, (sites, width))[index]
    if kept is None or noise_std is None:
        raise Misuse(NOTHING_KEPT)
    own = own_map(alignment, kept, noise_std, broadcast, width)
    return own.matrix, own.offset


def own_map(
    alignment: Alignment,
    kept: Mapping[str, Floats],
    noise_std: Mapping[str, float],
    broadcast: Mapping[str, Floats],
    width: int,
) -> AffineMap:
    """The affine map of so many features that a site makes of what it kept.

    Raises:
        HostileInput: the broadcast holds no reference that fits.
        Misuse: the alignment is of another kind.
    """
    if alignment.kind == "broadcast" or alignment.kind == "moments":
        raise Misuse(f"The alignment {alignment.kind!r} is not an affine map that a site makes of all features together.")
    from veilsum_aggregation.alignment import local_map

    reference = {name: array for name, array in broadcast.items() if name.startswith(REFERENCE)}
    try:
        own = local_map(alignment.kind, kept, noise_std, reference, tau=alignment.tau)
        if own.matrix.shape != (width, width):
            raise ValueError("another dimension")
    except (KeyError, ValueError, ArithmeticError) as error:  # sizes beyond all that a reference has overflow
        raise HostileInput(f"The broadcast holds no reference for the alignment {alignment.kind!r}.") from error
    return own


def _array(broadcast: Mapping[str, Floats], name: str, shape: tuple[int, ...]) -> Floats:
    array = broadcast.get(name)
    if array is None or array.shape != shape:
        raise HostileInput(f"The broadcast must hold {name} of shape {shape}.")
    return array
