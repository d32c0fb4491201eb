"""The kinds of spectra of a checkpoint by name, and their figures: of stored weights, of products that are never
formed, and of derivatives on a text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite

import numpy as np

from formats.core.errors import InputError, suggest_name
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import counted, patterns
from opmatrix.algebra.term import Operator
from opmatrix.display.draw import parse_weight_name
from opmatrix.files.checkpoint import Checkpoint
from opmatrix.inference.text import LineReading, read_lines, sentences
from opmatrix.runtime.pricing import datasheet
from opmatrix.spectra import PowerLaw, Spectrum
from rewrites.approximate.sites import sites
from rewrites.explain.exploring.openings import STAND_IN
from rewrites.lowering.lower import plainly
from rewrites.report.spectra.error_spectra import ErrorSpectra, list_names
from rewrites.report.spectra.head_spectra import head_spectra
from rewrites.report.spectra.jacobian_spectra import jacobian_spectra
from rewrites.report.spectra.stream_layers import stream_of
from rewrites.report.weight_spectra import called, list_matrices, weights
from rewrites.search.search import search
from rewrites.workload.phases import Tell
from rewrites.workload.workload import check_tokens

JACOBIAN_ROWS, ERROR_ROWS = 48, 1024  # most rows of text, about: Jacobians take a hundred products a layer
SENTENCE_LENGTHS = [16] * 256  # lengths of the sentences that the program of a model is made for
TAILS = {"tail_10": 0.1, "tail_1": 0.01}  # shares of the energy beyond a rank


@dataclass
class Spectra:
    """The spectra of one kind of a checkpoint on a text (None: the shipped sentences). `notes`: lines about spectra
    that are left out, and about parts of the model that they do not have."""

    checkpoint: Checkpoint
    text: str | None = None
    progress: Tell = lambda *_: None
    notes: list[str] = field(default_factory=list)

    def batch(self, most: int) -> Batch:
        """Return whole lines of the text, about as many rows as `most`. Raises InputError for a line that cannot be
        read, unless it is one of the shipped sentences."""
        lines = sentences() if self.text is None else read_lines(self.text)
        reading = LineReading(truncate=True, skip_bad=self.text is None)
        rows = [row for row in self.checkpoint.tokenizer().rows(lines, reading) if row]
        if not rows:
            raise InputError(f"{reading.fault}: give lines that the tokenizer can read: --text FILE")
        batch = next(Batch(rows).pieces(most))
        check_tokens(self.checkpoint, batch)
        self.notes.append(f"on {len(batch)} lines of {self.text or 'the shipped sentences'}, {batch.rows} tokens")
        return batch

    def of_weights(self) -> list[Spectrum]:
        """Return the spectra of stored weights."""
        return weights(self.checkpoint.operator())

    def of_heads(self, kind: str) -> list[Spectrum]:
        """Return the spectra of one of the two products of each head."""
        return head_spectra(stream_of(self.checkpoint.operator()).layers, kind, self.notes)

    def of_jacobians(self) -> list[Spectrum]:
        """Return the spectra of layers' Jacobians, and of the output's."""
        batch = self.batch(JACOBIAN_ROWS)
        stream = stream_of(self.checkpoint.operator(True))
        return jacobian_spectra(stream, batch, self.notes, progress=self.progress)

    def of_errors(self) -> list[Spectrum]:
        """Return the error spectra of weights, in a program with a kernel for each operator."""
        batch = self.batch(ERROR_ROWS)
        spectra = error_spectra(self.checkpoint.operator(True), batch, self.progress)
        computed = spectra.spectra(self.progress)
        self.notes += spectra.notes
        return computed


def error_spectra(model: Operator, batch: Batch, progress: Tell) -> ErrorSpectra:
    """Return the error spectra of a model on a batch, not yet computed. The program has a kernel for each operator, so
    that no function stands between a product and its cotangents; no machine is measured for it."""
    progress("a program with a kernel for each operator")
    sizes = counted(SENTENCE_LENGTHS, patterns(model))
    structure = search(model, (), datasheet(STAND_IN), sizes, methods=plainly, fusion=False)
    program, emitter = structure.program({})
    errors = ErrorSpectra(program, sites(program, structure, emitter), batch)
    named = {name for site in errors.multiplied().values() for name in list_names(site)}
    within = [name for name in dict.fromkeys(map(called, list_matrices(model))) if name not in named]
    errors.notes += [f"{name}: it is read by a step that computes more than a product: left out" for name in within]
    return errors


SPECTRA_KINDS: Mapping[str, Callable[[Spectra], list[Spectrum]]] = {
    "weights": Spectra.of_weights,
    "qk": lambda spectra: spectra.of_heads("qk"),
    "vo": lambda spectra: spectra.of_heads("vo"),
    "jacobian": Spectra.of_jacobians,
    "error": Spectra.of_errors,
}
ON_TEXT = "jacobian", "error"  # kinds that depend on a text


def check_kind(kind: str, text: object) -> None:
    """Raise InputError for an unknown kind of spectra, and for a text that a kind does not read."""
    if kind not in SPECTRA_KINDS:
        raise InputError(f"--of {kind:.40}: {suggest_name(kind, SPECTRA_KINDS)}it is {', '.join(SPECTRA_KINDS)}")
    if text is not None and kind not in ON_TEXT:
        raise InputError(
            f"--text {text}: spectra of {kind} depend on no text: leave it out, or give --of jacobian or error"
        )


def spectrum_record(spectrum: Spectrum) -> dict[str, object]:
    """Return the figures of a spectrum as JSON, the same for every kind; None for a figure that is not known, such as a
    rank beyond the values that were computed."""
    layer, matrix = parse_weight_name(spectrum.name)
    ranks = {name: spectrum.rank_at(level) for name, level in TAILS.items()}
    known = len(spectrum.values)
    return {
        "layer": layer,
        "matrix": matrix,
        "size": list(spectrum.shape),
        "largest": float(spectrum.values[0]),
        "energy": float(spectrum.energy.sum() + spectrum.beyond),
        "stable": spectrum.stable_rank,
        "effective": finite(spectrum.effective_rank),
        **{name: rank if rank <= known else None for name, rank in ranks.items()},
        "bend": spectrum.knee if spectrum.whole else None,
        "power_law": power_law_record(spectrum.power_law),
        "values": spectrum.values.tolist(),
    }


def power_law_record(law: PowerLaw) -> dict[str, object] | None:
    """Return the power law of eigenvalues σ² as JSON: the range of σ that it was fitted to, and how well it fits; None
    where there are too few values."""
    if not isfinite(law.exponent):
        return None
    return {
        "exponent": law.exponent,
        "standard_error": law.error,
        "from_sigma": float(np.sqrt(law.cutoff)),
        "values": law.count,
        "ks_distance": law.distance,
        "ks_over_5_percent_point": finite(law.excess),
        "fits": bool(law.fits),
    }


def finite(number: float) -> float | None:
    """Return a number; None for nan and infinity, which JSON lacks."""
    return float(number) if isfinite(number) else None


def list_notes(notes: Sequence[str], most: int = 12) -> list[str]:
    """Return the first notes, and a line for the number of further ones."""
    rest = len(notes) - most
    return [*islice(notes, most), *([f"and {rest} more such lines, in --json"] if rest > 0 else [])]
