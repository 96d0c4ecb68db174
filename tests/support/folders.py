"""Small folders in the form of the published collections, with random content."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.io import savemat

HEART = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,{num}\n40,0,2,130,?,0,0,160,0,-9,?,?,?,{num}\n"


def write_collection(name: str, folder: Path, records: int = 30, seed: int = 5) -> Path:
    """A small folder in the published form, with random content."""
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    if name == "digits4":
        arrays = {}
        for domain in ("mnist", "usps", "semeion", "optdigits"):
            for split in ("train", "test"):
                arrays[f"{domain}_X_{split}"] = rng.integers(0, 256, (records, 16, 16)).astype(np.uint8)
                arrays[f"{domain}_y_{split}"] = (np.arange(records) % 10).astype(np.uint8)
        np.savez(folder / "digits4_16.npz", **arrays)
    elif name == "mnist":
        images, labels = rng.integers(0, 256, (records, 28, 28)).astype(np.uint8), np.arange(records) % 10
        np.savez(folder / "mnist.npz", X_train=images, y_train=labels, X_test=images[:10], y_test=labels[:10])
    elif name == "office-caltech10":
        for domain in ("amazon", "caltech", "dslr", "webcam"):
            words = rng.poisson(0.2, (records, 800)).astype(np.uint8)
            labels = (np.arange(records) % 10 + 1).astype(np.uint8)[:, None]
            savemat(folder / f"{domain}_SURF_L10.mat", {"fts": words, "labels": labels})
    else:
        for domain in ("cleveland", "hungarian", "switzerland", "va"):
            lines = [HEART.format(num=number % 5) for number in range(records // 2)]
            (folder / f"processed.{domain}.data").write_text("".join(lines))
    return folder
