"""The command that repeats a run, from the figures of its report."""

from collections.abc import Mapping
from pathlib import PurePath
from shlex import quote
from typing import Any


def repeat_commands(found: Mapping[str, Any]) -> list[str]:
    """Return lines for a shell, with all text from the file quoted."""
    model = str(found["model"])
    words = ["opmatrix", "optimize", model]
    goals = [str(goal["goal"]) for goal in found["goals"]]
    if len(goals) > 1:
        for goal in goals:
            words += ["--keep", goal]
    else:
        words += ["--error", f"{found['error']:g}"]
    if found["memory"] is not None:
        words += ["--memory", f"{found['memory'] / 1e6:g}"]
    if found["number_type"] != "int8":
        words += ["--number-type", str(found["number_type"])]
    if found["tokens"] is not None:
        words += ["--tokens", str(found["tokens"])]
    if found["generate"]:
        words += ["--workload", str(found["generate"])]
    elif found["texts"]:
        words += ["--workload", str(found["texts"]["file"])]
    elif found["mix"]:
        words += ["--workload", ",".join(f"{share}:{lengths}" for share, lengths in found["mix"])]
    if found["text"]:
        words += ["--text", str(found["text"]["file"])]
    if found["laws"]:
        words += ["--laws", str(found["laws"]["file"])]
    for law in found["without"]:
        words += ["--without", str(law)]
    saved = f"{PurePath(model).name or 'model'}.opmatrix"
    return [" ".join(map(quote, words)), f"opmatrix verify {quote(saved)}", f"opmatrix explain {quote(saved)}"]
