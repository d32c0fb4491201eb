"""`opmatrix discover`: rounds of discovery, the file of their laws, and what the laws pay."""

import time
from dataclasses import dataclass
from pathlib import Path

from formats.core.errors import InputError
from rewrites.cli.outputs import say
from rewrites.discovery.near import propose_near, tell_near
from rewrites.discovery.rounds import Discovery
from rewrites.discovery.stated_laws import StatedEquation
from rewrites.discovery.written import check_unused_place, describe_found, interrupted, read_interrupted, write_laws
from rewrites.egraph.layers import outputs
from rewrites.explain.exploring.exploration import explore
from rewrites.explain.exploring.payoffs import price_laws
from rewrites.workload.resolve import open_arguments

check_out = check_unused_place


def find_near_terms(near: float | None, on: str | None, size: int, out: Path | None) -> None:
    """Print terms that are nearly equal on a model's activations. Raises InputError where an option is missing, and for
    a file: proposals are no laws."""
    if near is None or on is None:
        raise InputError("--near and --on: give both, an error such as 0.02 and a model")
    if not 0 < near < 1:
        raise InputError(f"--near {near}: an error lies between 0 and 1")
    if out is not None:
        raise InputError(f"--out {out}: what is nearly equal is no law, and is written to no file: leave it out")
    operator, workload, _ = open_arguments(on, None, None, None)
    first = next(iter(outputs(operator).values()))
    say(tell_near(propose_near(first, workload.verify, near, size=size)))


@dataclass(frozen=True)
class Discovering:
    """A run of the command: its line, the file of laws, whether that is gone on with, and the model that laws are
    priced on."""

    command: str
    out: Path | None
    resume: bool
    pays: str | None

    def run(self, kinds: tuple[str, ...], size: int, seed: int, seconds: float) -> None:
        """Run rounds, print and write what was found. An interruption keeps it, with the number of rounds."""
        explored = None if self.pays is None else explore(self.pays)
        discovery, start = Discovery(kinds, size, seed), time.perf_counter()
        if self.resume:
            discovery.resume(*self.read())
        try:
            for counts in discovery.run(seconds):
                say(f"{counts}")
        except BaseException:
            self.write(discovery, interrupted(self.command, discovery.done))
            raise
        if discovery.done < len([*discovery.rounds()]):
            self.write(discovery, interrupted(self.command, discovery.done))
        else:
            discovery.drop_derived()
            self.write(discovery, self.command)
        taken = time.perf_counter() - start
        say("\n".join(["", *map(describe_found, discovery.laws), "", discovery.summary(taken)]))
        if explored is not None:
            say(price_laws(explored, [one.law for one in discovery.laws if one.chain]))

    def read(self) -> tuple[int, list[StatedEquation]]:
        """Return the rounds that ended, and the equations of the file. Raises InputError where there is no file."""
        if self.out is None or not self.out.exists():
            raise InputError("--resume: name the file of an interrupted run by --out")
        return read_interrupted(self.out, self.command)

    def write(self, discovery: Discovery, command: str) -> None:
        """Write the laws, if there are any and a file is named."""
        if self.out is not None and discovery.laws:
            write_laws(self.out, discovery.laws, command, again=self.resume)
