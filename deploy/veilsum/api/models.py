"""Released models with scikit-learn's interface, without scikit-learn. They are applied here and never trained further."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from veilsum.api.notebook import fields_html
from veilsum.tables import as_table, column_values
from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import DataError, Misuse
from veilsum_participant.applying.model import Model, best_class, probabilities
from veilsum_participant.data import typed
from veilsum_participant.data.encode import encode_table
from veilsum_participant.data.reader import SourcePart
from veilsum_participant.data.table import check_texts, named_texts, typed_table
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import Records

if TYPE_CHECKING:
    from veilsum_participant.applying.personal import Personal


@dataclass
class _Applied:
    """What classifiers and encoders have in common.

    Attributes:
        released: the model.
        site: whose alignment is applied; None where there is none.
        about: what exported files say of the study.
    """

    _estimator_type: ClassVar[str]
    released: Model = field(repr=False)
    site: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def feature_names_in_(self) -> NDArray[np.object_]:
        """The columns that the model reads, in order."""
        return np.array(list(dict.fromkeys(column.source for column in self.released.schema.columns)), dtype=object)

    @property
    def n_features_in_(self) -> int:
        """How many they are."""
        return len(self.feature_names_in_)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The model, the site whose alignment it applies, and where it comes from."""
        return {"released": self.released, "site": self.site, "about": self.about}

    def set_params(self, **parameters: Any) -> _Applied:
        """Set the site.

        Raises:
            Misuse: another parameter: a released model is what it is.
        """
        if wrong := sorted(parameters.keys() - {"released", "site", "about"}):
            raise Misuse(f"A released model has no parameter {wrong[0]!r} to set.", "It has `site`.")
        for name, value in parameters.items():
            setattr(self, name, value)
        return self

    def _repr_html_(self) -> str:
        about = {"model": type(self).__name__, "columns": list(self.feature_names_in_)}
        about |= {"classes": self.released.classes} if self.released.classes else {}
        return fields_html(about | ({} if self.site is None else {"site": self.site}))

    def fit(self, X: Any, y: Any = None) -> NoReturn:  # noqa: N803  scikit-learn's names
        """Refused: the model was made by a study.

        Raises:
            Misuse: always.
        """
        raise Misuse("A released model is not trained further here.", "Run another study: dataset.train(...).")

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        # only where scikit-learn itself asks
        from sklearn.utils import ClassifierTags, InputTags, RegressorTags, Tags, TargetTags, TransformerTags

        kind, multiple = self._estimator_type, len(self.released.classes) > 2
        return Tags(
            estimator_type=kind,
            target_tags=TargetTags(required=False),
            classifier_tags=ClassifierTags(multi_class=multiple) if kind == "classifier" else None,
            regressor_tags=RegressorTags() if kind == "regressor" else None,
            transformer_tags=TransformerTags() if kind == "transformer" else None,
            input_tags=InputTags(allow_nan=True, string=True),
        )

    def to_onnx(self, path: str | Path, *, from_features: bool = False, replace: bool = False) -> Path:
        """Write the model as an ONNX file, which takes columns in their own units (:mod:`veilsum.onnx_model`).

        Args:
            path: of the file.
            from_features: begin behind the encoder, with features in place of columns.
            replace: replace a file that is there with other content, which is an error without it.

        Raises:
            StateError: another file is there.
            Unavailable: it cannot be written.
            Misuse: a step of the model has no form in ONNX; the message says what to do.
            ConfigurationError: onnx is not installed.
        """
        from veilsum.onnx_model import write_onnx

        about, site = self.about, self.site
        return write_onnx(self.released, Path(path), about, site=site, from_features=from_features, replace=replace)

    def at_new_site(self, X: Any) -> Self:  # noqa: N803
        """This model at a site that took no part in its study: aligned by the site's own records, whose classes are not read.

        ``X`` are the records to predict, or others of the same site. Nothing is released by it. A model without an alignment
        stays as it is.

        Raises:
            Misuse: an earlier version of veilsum made the result, which lacks what its maps were made by.
            DataError: no record has features.
        """
        own = copy(self)
        own.released, own.site = self.released.at_new_site(self._records(X)), None
        return own

    def _records(self, X: Any) -> Records:  # noqa: N803
        schema = self.released.schema.model_copy(update={"label": None})
        if isinstance(X, str | Path):
            return self.released.read(X)
        if isinstance(X, np.ndarray) and (X.ndim != 2 or X.shape[1] != self.n_features_in_):
            raise DataError(
                f"X has the shape {X.shape}; the model reads {self.n_features_in_} columns.",
                f"Give them in the order {', '.join(self.feature_names_in_[:20])}, or a frame with their names.",
            )
        named = X if not isinstance(X, np.ndarray) else dict(zip(self.feature_names_in_, X.T.tolist(), strict=True))
        return encode_frame(named, schema)


def encode_frame(frame: Any, schema: DatasetSchema) -> Records:
    """The records of a frame, as a site would read them: columns are scaled by the schema's bounds.

    Raises:
        DataError: a column is missing, or holds neither numbers nor texts.
    """
    texts = named_texts(schema)
    table = as_table(frame, "X")
    for name in schema.file_columns:
        column_values(table, name, "X")
        kind = table[name].type
        if not (typed.readable(kind) or typed.is_date(kind)):
            raise DataError(f"X: column {name!r} holds {kind}.", "Give numbers or texts.")
        check_texts(f"X: column {name!r} holds {kind}", typed.plain(kind), texts.get(name))
    return encode_table(typed_table(SourcePart(table), schema), schema)


class Classifier(_Applied):
    """A released classifier, such as the model of ``fedsgd`` or ``fedcgs``.

    ``X`` is a frame with the model's columns in their own units (others are left aside), an array of them in order, or the
    path of a file. Where the study left out records with missing values, such a record gets no class: None, and NaN.
    """

    _estimator_type = "classifier"
    personal: Personal | None = None
    """How it was made, of a model of :meth:`personalise`."""

    @property
    def classes_(self) -> NDArray[np.object_]:
        """Names of the classes."""
        return np.array(self.released.classes, dtype=object)

    def decision_function(self, X: Any) -> Floats:  # noqa: N803
        """Scores (n, K); of two classes (n,), the second's less the first's."""
        scores = self.released.scores(self._records(X), self.site)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> Floats:  # noqa: N803
        """Probabilities (n, K): the softmax of the scores."""
        return probabilities(self.released.scores(self._records(X), self.site))

    def predict(self, X: Any) -> NDArray[np.object_]:  # noqa: N803
        """The class (n,) with the largest score; None where there is none."""
        best = best_class(self.released.scores(self._records(X), self.site))
        return np.array([None if index < 0 else self.released.classes[index] for index in best], dtype=object)

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        """Share of records whose class is predicted rightly; ``y`` holds names of classes."""
        return float(np.mean(self.predict(X) == np.asarray(y, dtype=object)))

    def personalise(self, X: Any, y: Any) -> Classifier:  # noqa: N803
        """A model of a site's own: this one, moved as far as the site's records speak for it; they are used exactly.

        What it reaches on own records that it was not made of, beside the released model and the site alone, is its
        ``personal``. Nothing is released by it, and it is as confidential as the records are.

        Args:
            X: records, as of :meth:`predict`.
            y: their classes (n,); a class that the model does not know is left out.

        Raises:
            Misuse: the model is a site's own already.
            DataError: no record can be learnt from.
        """
        from veilsum_participant.applying.personal import personalise

        classes, records = self.released.classes, self._records(X)
        truth = np.array([classes.index(name) if name in classes else -1 for name in map(str, np.asarray(y, dtype=object))])
        if len(truth) != len(records):
            raise DataError(f"X has {len(records)} records and y {len(truth)} classes.", "Give one class a record.")
        named = self.released.schema.classes
        places = np.array([*(named.index(name) for name in classes), -1], dtype=np.int64)
        labelled = replace(records, labels=places[truth])
        found = personalise(self.released, labelled, site=self.site)
        own = Classifier(found.model, self.site)
        own.about, own.personal = self.about, found
        return own


class Regressor(_Applied):
    """A released model of a number, a count or a time. ``X`` as for a :class:`Classifier`."""

    _estimator_type = "regressor"

    def predict(self, X: Any) -> Floats:  # noqa: N803
        """Numbers or mean counts (n,) in the column's unit, or probabilities of the event by the horizon."""
        return self.released.estimates(self._records(X))

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        """R squared of records with a prediction."""
        found, truth = self.predict(X), np.asarray(y, dtype=np.float64)
        used = np.isfinite(found) & np.isfinite(truth)
        error, spread = found[used] - truth[used], truth[used] - truth[used].mean()
        return float(1.0 - (error @ error) / (spread @ spread))


class Encoder(_Applied):
    """A released projection, such as the components of ``pca``: columns to features."""

    _estimator_type = "transformer"

    def transform(self, X: Any) -> Floats:  # noqa: N803
        """Features (n, m); NaN where the study left such records out."""
        return self.released.features(self._records(X), self.site)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Names of the features, numbered from 1."""
        return np.array([f"feature_{number}" for number in range(1, self.released.width + 1)], dtype=object)


def open_model(
    result: Result, encoder: Path | None = None, weights: Path | None = None, *, site: str | None
) -> Classifier | Regressor | Encoder:
    """The model of a result.

    Raises:
        Misuse: the result holds none.
    """
    released = Model.from_result(result, encoder, weights)
    if released.recipe.outcome is not None:
        return Regressor(released, site)
    return Encoder(released, site) if released.recipe.head is None else Classifier(released, site)
