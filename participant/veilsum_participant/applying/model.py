"""A result as a model: from a bundle and new records to features, scores and classes.

In three lines::

    from veilsum_participant.applying.model import load_model
    model = load_model("result")
    predicted = [model.classes[index] for index in model.predict(model.read("new.csv"))]

The steps are those of the study: columns are scaled by their public bounds, a projection or a frozen program makes features of
them, the site's alignment moves these, a head scores them. A bundle is checked against what it says of itself before anything
is computed; nothing in it runs. Models are applied here and not trained.

Alignments of a result as they are applied: maps of a site's features, made as at the site during the study.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation import moment_alignment
from veilsum_aggregation.alignment import local_map, unlabelled_map
from veilsum_aggregation.arrays import Bools, Floats
from veilsum_aggregation.moment_maps import scaled
from veilsum_node.config import did_you_mean
from veilsum_node.errors import ConfigurationError, DataError, HostileInput, Misuse, raising
from veilsum_participant.applying.heads import PERSONAL, NetworkHead, PersonalHead, head_scores
from veilsum_participant.applying.recipe import MadeBy, Maps, OwnAlignment, ProjectionArrays, Recipe, parse_recipe
from veilsum_participant.settings.encoder_files import file_digest
from veilsum_privacy.mechanism.exact import ExactAffine
from veilsum_privacy.results.result import Result, load_result
from veilsum_privacy.study.encoder import Program, RandomFeatures
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.feature_maps import height, waves
from veilsum_privacy.tasks.parameters import MomentUse
from veilsum_privacy.training.models import Architecture
from veilsum_privacy.training.weights import offer, offered

Move = Callable[[Floats, Bools], Floats]
"""An alignment: of finite features (n, m), and of which columns of the records are present (n, d)."""

Encode = Callable[[Floats], Floats]

_UNFIT = HostileInput("The result's reference does not fit its features.", "Fetch the result again.")


@dataclass(frozen=True)
class Model:
    """A model to apply.

    Attributes:
        schema: the columns that it reads; with a label where the result names one.
        classes: names of the classes, in the order of the scores; empty for an encoder without a head.
        recipe: the steps from columns to scores.
        arrays: float64 arrays that the steps name.
        program: the frozen program, for a result that needs one.
    """

    method: str
    schema: DatasetSchema
    classes: tuple[str, ...]
    recipe: Recipe
    arrays: Mapping[str, Floats]
    program: Encode | None = None

    @staticmethod
    def from_result(result: Result, encoder: Path | Encode | None = None, weights: Path | None = None) -> Model:
        """Make a model of a result.

        Args:
            encoder: the file of the frozen program, or the program, for a result that names one.
            weights: the file of a network's frozen weights, for a result of adapters; None where this process knows it.

        Raises:
            Misuse: the result is only read, or its program or its weights were not given.
            ConfigurationError: the file is not the program, or the weights, that the result names.
            HostileInput: the result contradicts itself; the message says where.
        """
        recipe, arrays = parse_recipe(result)
        program: Encode | None = None
        if isinstance(recipe.encoder, Program):
            if encoder is None:
                raise Misuse(
                    f"This result needs the frozen program with SHA-256 {recipe.encoder.sha256}.",
                    "Give its file as the encoder.",
                )
            from veilsum_participant.data.encoders import load_encoder  # with all that reads files, which a plan does without

            program = load_encoder(encoder, recipe.encoder) if isinstance(encoder, Path) else encoder
        _take_weights(recipe, weights)
        return Model(result.method, recipe.schema, recipe.classes, recipe, arrays, program)

    @property
    def width(self) -> int:
        """Number of features that the head takes."""
        return self.recipe.width

    def read(self, path: str | Path, *, labelled: bool = False) -> Records:
        """Read the model's columns of a CSV, Parquet or npz file; with ``labelled``, its classes too.

        Raises:
            DataError: the file or a column is missing or unreadable.
        """
        schema = self.schema if labelled else self.schema.model_copy(update={"label": None})
        from veilsum_participant.data.encode import encode_table  # as above
        from veilsum_participant.data.sources import read_table

        return encode_table(read_table(Path(path), schema), schema)

    def features(
        self,
        records: Records,
        site: str | None = None,
        kept: Mapping[str, Floats] | None = None,
        noise_std: Mapping[str, float] | None = None,
    ) -> Floats:
        """Features (n, m) of records: encoded, then aligned as the site's records were.

        Args:
            records: under the model's schema.
            site: whose alignment is taken; needed where the result holds one map a site.
            kept: blocks of the site's kept statistic in their own units; needed where a site makes its own map.
            noise_std: standard deviation of the noise of each of these blocks; by default what the result says.

        Returns:
            a row of NaN for a record that the missing rule leaves out, or that the program finds invalid.

        Raises:
            Misuse: the records have other columns, or what the alignment needs was not given.
            HostileInput: the result's alignment cannot be made of what it holds.
        """
        if records.features.shape[1] != self.schema.width:
            raise Misuse(
                f"The records have {records.features.shape[1]} features; the model reads {self.schema.width}.",
                "Read them with the model's own schema.",
            )
        move = self._alignment(site, kept, noise_std)
        skip = self.recipe.missing_rule == "skip"
        whole = _all(records.present) if skip else np.ones(len(records), dtype=np.bool_)
        x = np.where(records.present & whole[:, None], records.features, 0.0)
        if isinstance(self.recipe.encoder, ProjectionArrays):
            named = self.recipe.encoder
            x = ExactAffine(self.arrays[named.matrix], self.arrays[named.offset])(x)
        elif isinstance(drawn := self.recipe.encoder, RandomFeatures):
            x = np.cos(ExactAffine(*waves(drawn))(x)) * height(drawn)
        elif self.program is not None:
            x = self.program(x)
        if move is not None:
            finite = _all(np.isfinite(x))
            whole &= finite
            x = move(np.where(finite[:, None], x, 0.0), records.present)
        return cast(Floats, np.where(whole[:, None], x, np.nan))

    def scores(
        self,
        records: Records,
        site: str | None = None,
        kept: Mapping[str, Floats] | None = None,
        noise_std: Mapping[str, float] | None = None,
    ) -> Floats:
        """Scores (n, K): the class with the largest is predicted; NaN where :meth:`features` are.

        Raises:
            Misuse: the result has no head; and as :meth:`features`.
        """
        head = self.recipe.head
        if head is None:
            raise Misuse("This result computes features and holds no classifier.", "Ask for features instead.")
        x = self.features(records, site, kept, noise_std)
        return head_scores(head, self.arrays, x, self.recipe.scores)

    def predict(
        self,
        records: Records,
        site: str | None = None,
        kept: Mapping[str, Floats] | None = None,
        noise_std: Mapping[str, float] | None = None,
    ) -> NDArray[np.int64]:
        """Indices (n,) into ``classes``; -1 for a record without scores. Raises as :meth:`scores`, and for an outcome."""
        if self.recipe.outcome is not None:
            raise Misuse("This model predicts an outcome and tells no classes apart.", "Ask for its estimates.")
        return best_class(self.scores(records, site, kept, noise_std))

    def estimates(self, records: Records) -> Floats:
        """What a model of an outcome predicts (n,): the number or mean count, or the probability of the event by the horizon.

        NaN for a record that the missing rule leaves out.

        Raises:
            Misuse: the model tells classes apart.
        """
        outcome = self.recipe.outcome
        if outcome is None:
            raise Misuse("This model tells classes apart.", "Ask for its classes or scores.")
        return outcome.estimates(self.scores(records))

    def at_new_site(self, records: Records) -> Model:
        """The model at a site that took no part: aligned by what the site's own records are like, whose classes are not read.

        What the map is made of is computed here, in the clear, and goes nowhere. A model without an alignment is returned as
        it is, and so is a personal one that was made at such a site, with the map that it has.

        Args:
            records: of the site, under the model's schema: those to be predicted, or others of the same kind.

        Raises:
            Misuse: the result does not hold what its maps were made by: another version of veilsum made it.
            DataError: no record has features.
            HostileInput: the result's reference does not fit its features.
        """
        alignment = self.recipe.alignment
        if alignment is None or (isinstance(self.recipe.head, PersonalHead) and _own_arrays(alignment)):
            return self
        made = alignment.made_by if isinstance(alignment, Maps) else alignment
        if made is None:
            raise Misuse("This result says nothing that a new site could be aligned by.", "Run its study again.")
        x = replace(self, recipe=replace(self.recipe, alignment=None)).features(records)
        known = _all(np.isfinite(x))
        if not known.any():
            raise DataError("No record has features to align the site by.", "Give records with all columns.")
        reference = {name: self.arrays[array] for name, array in made.reference.items()}
        if not reference:
            return replace(self, recipe=replace(self.recipe, alignment=None))
        with raising(_UNFIT, on=(KeyError, ValueError, ArithmeticError)):
            if made.kind == "moments":
                own = _power_sums(made, self.recipe, x[known])
                self._by_moments(made, reference, own, dict.fromkeys(own, 0.0))
            else:
                found = unlabelled_map(made.kind, x[known], reference, tau=made.tau)
                own = {"matrix": found.matrix, "offset": found.offset}
        named = {name: f"{PERSONAL}alignment.{name}" for name in own}
        settled = OwnAlignment(source="", own=named, **{name: getattr(made, name) for name in MadeBy.model_fields})
        held = {named[name]: array for name, array in own.items()}
        return replace(self, recipe=replace(self.recipe, alignment=settled), arrays={**self.arrays, **held})

    @property
    def holds_own(self) -> bool:
        """Whether a site's own records made its alignment, or its head, without noise: it is as confidential as they are."""
        return isinstance(self.recipe.head, PersonalHead) or bool(_own_arrays(self.recipe.alignment))

    def with_schema(self, schema: DatasetSchema) -> Model:
        """The model reading files as another schema says: names of columns, bounds and categories must be the same.

        Raises:
            Misuse: they are not.
        """
        if schema.columns != self.schema.columns:
            raise Misuse(
                "The schema describes other columns than the result.", "Give the schema that the study was made with."
            )
        return replace(self, schema=schema)

    def _alignment(
        self, site: str | None, kept: Mapping[str, Floats] | None, noise_std: Mapping[str, float] | None
    ) -> Move | None:
        alignment = self.recipe.alignment
        if alignment is None:
            return None
        if isinstance(alignment, Maps):
            if site is None:
                raise Misuse("This result aligns the features of each site.", f"Name one: {', '.join(alignment.sites[:20])}.")
            if site not in alignment.sites:
                raise Misuse(f"This result has no alignment for {site!r}.", did_you_mean(site, alignment.sites))
            index = alignment.sites.index(site)
            matrix, offset = self.arrays[alignment.matrix][index], self.arrays[alignment.offset][index]
            if alignment.moments is None:
                return _affine_move(matrix, offset)
            return _by_columns(lambda x: scaled(x, matrix, offset), alignment.moments, self.recipe)
        if own := {name: self.arrays[array] for name, array in _own_arrays(alignment).items()}:
            if alignment.kind != "moments":
                return _affine_move(own["matrix"], own["offset"])
            kept, noise_std = own, dict.fromkeys(own, 0.0)
        if kept is None:
            raise Misuse(
                f"This result is aligned by what a site kept of the task {alignment.source!r}.",
                "Apply it at a site that took part, which has it in its state file.",
            )
        noise = alignment.noise_std if noise_std is None else noise_std
        if noise is None:
            raise Misuse("The noise of the kept statistic is unknown.", "Give noise_std; without noise, zeros.")
        reference = {name: self.arrays[array] for name, array in alignment.reference.items()}
        try:
            if alignment.kind == "moments":
                return self._by_moments(alignment, reference, kept, noise)
            found = local_map(alignment.kind, kept, noise, reference, tau=alignment.tau)
        except (KeyError, ValueError, ArithmeticError) as error:
            raise HostileInput(
                "The result's reference does not fit the kept statistic.", "Use the result of the study it was kept for."
            ) from error
        if found.matrix.shape != (self.width, self.width):
            raise HostileInput("The kept statistic is of other features than the result's.", "Use the one of the same study.")
        return _affine_move(found.matrix, found.offset)

    def _by_moments(
        self, made: MadeBy, reference: Mapping[str, Floats], kept: Mapping[str, Floats], noise: Mapping[str, float]
    ) -> Move:
        """The map that what a site keeps gives it.

        Raises:
            ValueError, KeyError: kept statistic and reference do not fit together.
        """
        use = _moments(made)
        own = moment_alignment.local_map(kept, noise, reference, order=use.order, adjust=use.adjust, tau=made.tau)
        return _by_columns(own, use, self.recipe)


def network_of(recipe: Recipe) -> Architecture | None:
    """The network of a result's head, a personal one's too; None where it is none."""
    head = recipe.head.released if isinstance(recipe.head, PersonalHead) else recipe.head
    return head.architecture(recipe.width, recipe.scores) if isinstance(head, NetworkHead) else None


def _take_weights(recipe: Recipe, path: Path | None) -> None:
    """Have the frozen weights of a result's network at hand in this process, where it has any."""
    network = network_of(recipe)
    if network is None or not network.weights:
        if path is not None:
            raise Misuse("This result needs no file of base weights.", "Leave it out.")
        return
    if path is not None:
        if (found := file_digest(path)) != network.weights:
            told = f"{path}: its SHA-256 is {found}; the result names {network.weights}."
            raise ConfigurationError(told, "Get the exact file that the study was made with.")
        offer(network.weights, path)
    elif not offered(network.weights):
        raise Misuse(f"This result needs the base weights with SHA-256 {network.weights}.", "Give their file as the weights.")
    network.check_weights()


def load_model(directory: str | Path, encoder: str | Path | None = None, weights: str | Path | None = None) -> Model:
    """Load a result's bundle as a model.

    Args:
        directory: of ``manifest.json``.
        encoder: file of the frozen program, for a result that names one.
        weights: file of a network's frozen weights, for a result of adapters.

    Raises:
        HostileInput, Misuse: as :func:`veilsum_privacy.results.result.load_result` and :meth:`Model.from_result`.
    """
    given = [None if path is None else Path(path) for path in (encoder, weights)]
    return Model.from_result(load_result(Path(directory)), *given)


def best_class(scores: Floats) -> NDArray[np.int64]:
    """Index of the largest score (n,) of scores (n, K), the first of equal ones; -1 in rows that are not finite."""
    known = _all(np.isfinite(scores))
    best: NDArray[np.int64] = np.argmax(np.where(known[:, None], scores, 0.0), axis=1).astype(np.int64)
    best[~known] = -1
    return best


def probabilities(scores: Floats) -> Floats:
    """Softmax of scores (n, K) over the classes: what the scores mean where they are log posteriors up to a constant."""
    from scipy.special import softmax  # a plan does without

    result: Floats = softmax(scores, axis=1)
    return result


def _all(mask: Bools) -> Bools:
    return cast(Bools, np.logical_and.reduce(mask, axis=1))


def _own_arrays(alignment: Maps | OwnAlignment | None) -> Mapping[str, str]:
    """Names of what a site that took no part gave its alignment; none where the alignment is another one."""
    return alignment.own if isinstance(alignment, OwnAlignment) else {}


def _moments(made: MadeBy) -> MomentUse:
    if made.moments is None:
        raise ValueError("the result does not state its moments")
    return made.moments


def _power_sums(made: MadeBy, recipe: Recipe, x: Floats) -> dict[str, Floats]:
    """The blocks of the task "power-moments" over features (n, m), in the clear."""
    use = _moments(made)
    u = np.clip(x[:, recipe.aligned_columns(use)] / use.bound, -1.0, 1.0)
    powers = {f"t{k}": np.cos(k * np.arccos(u)) for k in range(1, use.order + 1)}
    if use.channels is not None:
        powers = {name: t.reshape(len(t), use.channels, -1).mean(axis=2) for name, t in powers.items()}
    return {"count": np.array([float(len(x))]), **{name: t.sum(axis=0) for name, t in powers.items()}}


def _affine_move(matrix: Floats, offset: Floats) -> Move:
    """x -> matrix x + offset, each row by itself."""
    return lambda x, present: ExactAffine(matrix, offset)(x)


def _by_columns(own: Callable[[Floats], Floats], use: MomentUse, recipe: Recipe) -> Move:
    """As :func:`veilsum_privacy.tasks.feature_maps.map_records` does it: the schema's own features stay in their box."""
    columns, bound = recipe.aligned_columns(use), use.bound

    def scaled(x: Floats, present: Bools) -> Floats:
        moved: Floats = own(x / bound) * bound
        return moved

    def boxed(x: Floats, present: Bools) -> Floats:
        moved = np.clip(x, -1.0, 1.0)
        moved[:, columns] = np.clip(own(moved[:, columns]), -1.0, 1.0)
        result: Floats = np.where(present, moved, 0.0)
        return result

    return boxed if recipe.encoder is None else scaled
