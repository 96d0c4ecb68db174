"""Pictures of pages by a browser without a screen."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageChops

from veilsum_node.errors import StateError

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SECONDS = 60.0
FREQUENT, DISTINCT = 232, 24
"""Colours of a picture: the most frequent ones, and those of what is small but differs most from them."""

_LEAST = 20  # pixels of a colour that is told apart

_SPARE = 200  # a window is taller than what it shows of a page


def find_browser() -> str | None:
    """A browser that can run without a screen, if one is installed."""
    return next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


def photograph(browser: str, page: Path, picture: Path, width: int, height: int | None = None) -> Path:
    """Write a picture of a page.

    Args:
        width, height: in pixels; without a height, as much as is not empty at the bottom, 6000 at most.

    Raises:
        StateError: the browser makes none.
    """
    with tempfile.TemporaryDirectory() as scratch:
        raw = Path(scratch) / "page.png"
        command = [
            browser,
            "--headless",
            "--disable-gpu",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
            f"--user-data-dir={scratch}/profile",
            f"--window-size={width},{(height or 6000) + _SPARE}",
            f"--screenshot={raw}",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),  # it refuses to run as root with one
            page.resolve().as_uri(),
        ]
        try:
            done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)  # noqa: S603  found on PATH
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StateError(f"The browser {browser} made no picture of {page} ({type(error).__name__}).") from error
        if done.returncode or not raw.is_file():
            raise StateError(f"The browser {browser} made no picture of {page} (status {done.returncode}).")
        with Image.open(raw) as image:
            shown = image.convert("RGB")
    bottom = height if height is not None else _content_end(shown)
    _save(shown.crop((0, 0, width, bottom)), picture)
    return picture


def _save(image: Image.Image, picture: Path) -> None:
    """Write an image with few colours: it takes a third of the room, and no colour of a curve or its legend changes."""
    packed, counts = np.unique(np.asarray(image, dtype=np.int64) @ (65536, 256, 1), return_counts=True)
    found = np.stack([packed >> 16, packed >> 8 & 255, packed & 255], axis=1)
    order = np.argsort(-counts, kind="stable")
    chosen = found[order[:FREQUENT]]
    others = found[order[FREQUENT:]][counts[order[FREQUENT:]] >= _LEAST]
    for _ in range(min(DISTINCT, len(others))):
        distances = np.abs(others[:, None, :] - chosen[None, :, :]).sum(axis=2).min(axis=1)
        chosen = np.vstack([chosen, others[np.argmax(distances)]])
    palette = Image.new("P", (1, 1))
    palette.putpalette(chosen.astype(np.uint8).tobytes())
    image.quantize(palette=palette, dither=Image.Dither.NONE).save(picture, optimize=True)


def _content_end(image: Image.Image) -> int:
    """Where the page ends: below lies nothing but the colour of the lower left corner."""
    empty = Image.new("RGB", image.size, image.getpixel((0, image.height - 1)))
    box = ImageChops.difference(image, empty).getbbox()
    return min(image.height, (box[3] if box else 1) + 24)
