"""A result of boosted trees as a model of XGBoost, in XGBoost's own JSON: ``xgboost.Booster(model_file="model.json")``.

XGBoost is given the features as trees split them, in float32 and in the order of ``feature_names``: numbers scaled by their
public bounds to [-1, 1], categories as indicators (``Model.features`` makes them). A tree whose leaves have a value a
class becomes one tree a class. A base is a first tree whose leaves all are it, since XGBoost's own base score is not rounded
as the sum is.

Of a number the predictions are s as in low + (s + 1) (high - low) / 2, of a count its mean over (high - low) / 2; the model's
attributes have these bounds, and ``most``, which XGBoost does not cut means at.
"""

import json
from typing import Any

import numpy as np

from veilsum_node.errors import Misuse
from veilsum_participant.applying.heads import NetworkHead
from veilsum_participant.applying.recipe import parse_recipe
from veilsum_privacy.results.result import Result
from veilsum_privacy.training.models.trees import BASE, FEATURES, LEAVES, THRESHOLDS, Trees

_OBJECTIVES: dict[str, dict[str, Any]] = {
    "squared": {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}},
    "poisson": {"name": "count:poisson", "poisson_regression_param": {"max_delta_step": "0.7"}},
}


def xgboost_json(result: Result) -> bytes:
    """The model as the bytes of a file.

    Raises:
        Misuse: the result holds no trees.
        HostileInput: the result contradicts itself.
    """
    recipe, arrays = parse_recipe(result)
    head = recipe.head
    if not isinstance(head, NetworkHead) or head.model.name != Trees.name:
        raise Misuse(f"A result of {result.method} holds no trees.", "XGBoost reads results of the method gbdt.")
    features, thresholds, leaves = (arrays[head.prefix + name] for name in (FEATURES, THRESHOLDS, LEAVES))
    names = list(recipe.schema.feature_names)
    if (base := arrays[head.prefix + BASE]).any():
        features, thresholds = (np.concatenate([np.zeros_like(nodes[:1]), nodes]) for nodes in (features, thresholds))
        leaves = np.concatenate([np.zeros_like(leaves[:1]) + base, leaves])
    inner = features.shape[1]
    classes = leaves.shape[2] if leaves.ndim > 2 else 1
    children, nodes = np.arange(inner), 2 * inner + 1
    ends = [-1] * (inner + 1)
    trees: list[dict[str, Any]] = [
        {
            "base_weights": [0.0] * nodes,
            "categories": [],
            "categories_nodes": [],
            "categories_segments": [],
            "categories_sizes": [],
            "default_left": [1] * inner + [0] * (inner + 1),
            "id": place * classes + score,
            "left_children": [*(2 * children + 1).tolist(), *ends],
            "loss_changes": [0.0] * nodes,
            "parents": [2**31 - 1, *((np.arange(1, nodes) - 1) // 2).tolist()],
            "right_children": [*(2 * children + 2).tolist(), *ends],
            "split_conditions": [*thresholds[place].tolist(), *leaves[place].reshape(inner + 1, classes)[:, score].tolist()],
            "split_indices": [*features[place].astype(np.int64).tolist(), *([0] * (inner + 1))],
            "split_type": [0] * nodes,
            "sum_hessian": [0.0] * nodes,
            "tree_param": {
                "num_deleted": "0",
                "num_feature": str(len(names)),
                "num_nodes": str(nodes),
                "size_leaf_vector": "1",
            },
        }
        for place in range(len(features))
        for score in range(classes)
    ]
    objective: dict[str, Any] = {"name": "binary:logistic", "reg_loss_param": {"scale_pos_weight": "1"}}
    if classes > 1:
        objective = {"name": "multi:softprob", "softmax_multiclass_param": {"num_class": str(classes)}}
    base_score, attributes = "5E-1" if classes == 1 else "0E0", dict[str, str]()
    if recipe.outcome is not None:  # base scores of which the margin is 0
        counts = recipe.outcome.loss == "poisson"
        objective, base_score = _OBJECTIVES[recipe.outcome.loss], "1E0" if counts else "0E0"
        told = {name: getattr(recipe.outcome, name) for name in ("column", "low", "high", "unit", "most")}
        attributes = {name: str(value) for name, value in told.items() if value is not None}
    model = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
        "iteration_indptr": list(range(0, len(trees) + 1, classes)),
        "tree_info": list(range(classes)) * len(features),
        "trees": trees,
    }
    learner = {
        "attributes": attributes,
        "feature_names": names,
        "feature_types": ["float"] * len(names),
        "gradient_booster": {"model": model, "name": "gbtree"},
        "learner_model_param": {
            "base_score": base_score,
            "boost_from_average": "0",
            "num_class": "0" if classes == 1 else str(classes),
            "num_feature": str(len(names)),
            "num_target": "1",
        },
        "objective": objective,
    }
    return json.dumps({"learner": learner, "version": [3, 0, 0]}, allow_nan=False).encode()
