"""Encoders whose programs are searched for with the prices of a stand-in machine, and kept in a directory of a test;
and the files of sentence-transformers beside a checkpoint."""

import json

import checkpoints
import numpy as np
import standin

from rewrites.encoders import kept_programs, searched

KIND = "sentence_transformers.models"


def keep_in(patch, place):
    """No calibration; programs are kept below a place."""
    patch.setattr(searched, "calibrated", lambda progress, *batches: standin.machine())
    patch.setattr(kept_programs, "location", lambda: place)


def dense(directory, columns, n, *, activation="torch.nn.modules.activation.Tanh", bias=True, residual=False):
    """Puts a Dense layer from n columns behind the modules of a checkpoint, before its Normalize. Returns its numbers
    by name."""
    rng, folder = np.random.default_rng(columns), directory / f"2_Dense{columns}"
    folder.mkdir()
    numbers = {"linear.weight": rng.normal(size=(columns, n)).astype("<f4") / 4}
    if bias:
        numbers["linear.bias"] = rng.normal(size=columns).astype("<f4")
    if residual and columns != n:
        numbers["residual.weight"] = rng.normal(size=(columns, n)).astype("<f4") / 4
    entries = {"in_features": n, "out_features": columns, "bias": bias, "activation_function": activation}
    (folder / "config.json").write_text(json.dumps(entries | ({"use_residual": True} if residual else {})))
    checkpoints.safetensors(folder / "model.safetensors", numbers)
    listed = json.loads((directory / "modules.json").read_text())
    at = len(listed) - listed[-1]["type"].endswith("Normalize")
    listed.insert(at, {"idx": at, "name": str(at), "path": folder.name, "type": f"{KIND}.Dense"})
    (directory / "modules.json").write_text(json.dumps(listed))
    return numbers
