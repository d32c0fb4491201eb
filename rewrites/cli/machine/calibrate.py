"""The work of `opmatrix calibrate`, which measures this machine, saves the results for later commands and reports them,
and of `opmatrix compile`."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from math import expm1
from pathlib import Path

from formats import kernels
from formats.disk.cache import CACHE_VARIABLE
from formats.disk.files import shown
from formats.host import blas
from formats.host.quiet import describe_noise
from formats.machine import peaks
from formats.machine.calibration import calibrate
from formats.machine.model import Machine, machine_file
from formats.machine.peaks import Peaks
from opmatrix.display.tables import table
from opmatrix.inference.compiled_ahead import compile_ahead
from opmatrix.runtime.pricing import catalogue
from opmatrix.runtime.program import Program
from rewrites.cli.machine import environment
from rewrites.workload.phases import Report

TAKEN_BUSY = (
    "prices are too high; the calibration is marked as such, and the first command on a quiet machine repeats it"
)


def calibrate_machine(report: Report) -> tuple[str, dict[str, object]]:
    """Measure this machine, save the results, and return them as text and as figures: peaks, BLAS, kernels. Files: the
    machine model that `this_machine` reads, beside it the peaks, and the BLAS setting that later commands run with."""
    with report.phase("compile") as progress:
        kernels.warm(progress=lambda name, seconds: progress(name))
    start = time.perf_counter()
    with report.phase("peaks") as progress:
        measured = peaks.measure_peaks(progress)
    with report.phase("BLAS") as progress:
        setting = blas.fastest(progress)
    with report.phase("kernels") as progress:
        machine = calibrate(catalogue(), progress, full=True)
    target = machine_file()
    saved = (
        machine.save(target),
        measured.save(target.with_suffix(".peaks.json")),
        environment.remember(setting.core, setting.rates),
    )
    seconds = time.perf_counter() - start
    text = "\n\n".join(
        [
            f"{machine.name}, {machine.threads} threads, in {seconds:.0f} s",
            peak_table(measured),
            blas_table(setting),
            kernel_table(machine),
            *([describe_noise(machine.busy, TAKEN_BUSY)] if machine.busy else []),
            f"kept in {target}" if all(saved) else "not kept",
        ]
    )
    return text, {
        "machine": machine.name,
        "threads": machine.threads,
        "seconds": seconds,
        "busy": machine.busy,
        "peaks": asdict(measured),
        "blas": {"core": setting.core, "rates": setting.rates},
        "kernels": kernel_figures(machine),
        "kept": str(target) if all(saved) else None,
    }


def compile_into(directory: Path, cache: Path | None, own: Path | None, began: float | None) -> str:
    """Compile all that a saved program needs into a cache, by default the user's. Return a line with its place."""
    report = Report(began=began)
    with report.phase("load"):
        program = Program.load(directory, laws=own)
    with report.phase("compile") as progress, caching_in(cache):
        compiled = compile_ahead(program, lambda name, seconds: progress(name))
    asked = "" if cache is None else f"\nwhere the program runs: export {CACHE_VARIABLE}={shown(cache.absolute())}"
    closed = f"\nother users cannot read them: {compiled.closed}" if compiled.closed else ""
    return (
        f"{compiled.kernels} kernels for {compiled.processor} in {shown(compiled.place)}, {compiled.bytes:,} "
        f"bytes, {compiled.new} of them compiled now{asked}{closed}"
    )


@contextmanager
def caching_in(cache: Path | None) -> Iterator[None]:
    """Use another cache directory inside the context, if one is given."""
    before = os.environ.get(CACHE_VARIABLE)
    if cache is not None:
        os.environ[CACHE_VARIABLE] = str(cache.absolute())
    try:
        yield
    finally:
        if before is not None:
            os.environ[CACHE_VARIABLE] = before
        else:
            os.environ.pop(CACHE_VARIABLE, None)


def peak_table(found: Peaks) -> str:
    """Return the table of rates, bandwidths and overheads, on one thread and on all."""
    return table([*map(list, found.rows())], ["peaks", "", "one thread", "all"])


def blas_table(setting: blas.Blas) -> str:
    """Return the table of the rate of each setting of numpy's BLAS; the setting that later commands run with is
    marked."""
    rows = [
        [f"{'*' if core == setting.core else ' '} {core or 'its own choice'}", f"{rate / 1e9:.0f}"]
        for core, rate in sorted(setting.rates.items(), key=lambda item: -item[1])
    ]
    return table(rows, ["numpy's BLAS", "Gflop/s"])


def kernel_figures(machine: Machine) -> dict[str, dict[str, object]]:
    """Return for each kernel its seconds as an expression in its sizes, and the relative error that 80 % of calls stay
    below."""
    return {
        kernel: {
            "seconds": str(machine.expression(kernel)),
            "within": expm1(machine.interval[kernel]) if kernel in machine.interval else None,
        }
        for kernel in machine.coefficients
    }


def kernel_table(machine: Machine) -> str:
    """Return the table of the seconds of every kernel as an expression in its sizes, and the relative error that 80 %
    of calls stay below."""
    rows = [
        [
            kernel,
            f"{100 * expm1(machine.interval[kernel]):.0f} %" if kernel in machine.interval else "",
            " + ".join(map(str, machine.expression(kernel).as_ordered_terms())),
        ]
        for kernel in machine.coefficients
    ]
    width = max(len(row[0]) for row in rows)
    return "\n".join(
        [
            "kernels: 80 % of calls are within this percentage of these seconds, without corrections by pattern",
            *(f"{kernel.ljust(width)}  {off:>5s}  {expression}" for kernel, off, expression in rows),
        ]
    )
