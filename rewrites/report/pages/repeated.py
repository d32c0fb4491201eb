"""The command that repeats a run, from the figures of its report."""

from collections.abc import Mapping
from pathlib import PurePath
from shlex import quote
from typing import Any


def repeat_commands(record: Mapping[str, Any]) -> list[str]:
    """Return lines for a shell, with all text from the file quoted."""
    model = str(record["model"])
    words = ["opmatrix", "optimize", model]
    goals = [str(goal["goal"]) for goal in record["goals"]]
    if len(goals) > 1:
        for goal in goals:
            words += ["--keep", goal]
    else:
        words += ["--error", f"{record['error']:g}"]
    if record["memory"] is not None:
        words += ["--memory", f"{record['memory'] / 1e6:g}"]
    if record["number_type"] != "int8":
        words += ["--number-type", str(record["number_type"])]
    if record["tokens"] is not None:
        words += ["--tokens", str(record["tokens"])]
    if record["generate"]:
        words += ["--workload", str(record["generate"])]
    elif record["texts"]:
        words += ["--workload", str(record["texts"]["file"])]
    elif record["mix"]:
        words += ["--workload", ",".join(f"{share}:{lengths}" for share, lengths in record["mix"])]
    if record["text"]:
        words += ["--text", str(record["text"]["file"])]
    if record["laws"]:
        words += ["--laws", str(record["laws"]["file"])]
    for law in record["without"]:
        words += ["--without", str(law)]
    saved = f"{PurePath(model).name or 'model'}.opmatrix"
    return [" ".join(map(quote, words)), f"opmatrix verify {quote(saved)}", f"opmatrix explain {quote(saved)}"]
