"""Commands at sizes that nobody has: every number that an option of a command takes, at each of some absurd values.
Each is to end within ten seconds of processor time, with status 0, 1 or 2 and one last line.

    python tests/support/absurd_sizes.py [COUNT [SEED]]    (so many of them, drawn; 100 by default)"""

import json
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import get_args, get_type_hints

import typer
from children import ROOT

from rewrites.cli.commands import app

SECONDS, ENDS = 10, (0, 1, 2)
ABSURD = [
    "0",
    "-1",
    "1",
    "7",
    "65537",
    "1000000007",
    str(2**31),
    str(2**63),
    "1" + "0" * 30,
    "1e300",
    "nan",
    "-inf",
    "0.5",
    "",
]
CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
COMMANDS = {  # of each, arguments that it is well with
    "plan": ["config.json", "--devices", "8", "--machine", "A100", "--batch", "8"],
    "partition": ["config.json", "--batch", "4"],
    "launch": ["config.json"],
    "optimize": ["config.json", "--machine", "A100"],
}


def lines():
    """Every command with one of its numbers at each of the values."""
    every = typer.main.get_command(app).commands
    kinds = {each.name or each.callback.__name__: get_type_hints(each.callback) for each in app.registered_commands}
    for name, plain in COMMANDS.items():
        for option in every[name].params:
            numeric = {int, float} & {kinds[name][option.name], *get_args(kinds[name][option.name])}
            if option.param_type_name == "argument" or not numeric:
                continue
            for value in ABSURD:
                yield [name, *plain, f"{option.opts[0]}={value}"]


def limited():
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))


def outcome(words, room):
    """The fault of a command, or nothing."""
    ran = subprocess.run(
        [sys.executable, "-m", "rewrites.cli", *words],
        cwd=room,
        capture_output=True,
        text=True,
        preexec_fn=limited,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(room)},
    )
    if ran.returncode < 0:
        return f"more than {SECONDS} s" if -ran.returncode in (24, 9) else f"signal {ran.returncode}"
    last = ran.stderr.strip().splitlines()[-1:]
    if ran.returncode not in ENDS or "Traceback" in ran.stderr:
        return f"status {ran.returncode}: {last}"
    return "" if ran.returncode == 0 or (last and last[0].startswith("opmatrix: ")) else f"no line: {last}"


def main(count=100, seed=0):
    """Print each fault; the number of them."""
    every = [*lines()]
    some = random.Random(seed).sample(every, min(count, len(every)))
    faults = 0
    with tempfile.TemporaryDirectory() as room:
        (Path(room) / "config.json").write_text(json.dumps(CONFIG))
        for words in some:
            if said := outcome(words, Path(room)):
                print(f"{' '.join(words)}: {said}", flush=True)
            faults += bool(said)
    print(f"{faults} of {len(some)} commands, of {len(every)} in all")
    return faults


if __name__ == "__main__":
    sys.exit(min(main(*map(int, sys.argv[1:])), 1))
