"""Where tests find what is not part of the repository: development data, and the pretrained models."""

import os
from pathlib import Path

import pytest

from formats.disk.cache import cache_directory
from opmatrix.files.fetch import MODELS, fetch


def data(*parts: str) -> Path:
    """A file of the development data, in $OPMATRIX_DATA or else beside the repository; absent, the test skips."""
    beside = Path(__file__).parents[3] / "shared" / "data"
    path = Path(os.environ.get("OPMATRIX_DATA") or beside).joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs data: {path} is absent, set OPMATRIX_DATA to the directory of the data")
    return path


def minilm() -> Path:
    return fetched("minilm")


def smollm2() -> Path:
    return fetched("smollm2")


def fetched(name: str) -> Path:
    """A model's directory: the cached one, and in CI fetched where it is not cached yet. Else the test skips."""
    model = MODELS[name]
    if not os.environ.get("CI") and not model.whole(cache_directory() / model.name):
        pytest.skip(f"needs the model: `opmatrix optimize {name}` fetches it, and so does CI=true")
    return fetch(model)
