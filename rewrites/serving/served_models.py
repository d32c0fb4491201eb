"""Models that are served: programs by the names of requests, the tokens of texts within limits, and what programs
compute of them."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os.path import exists
from pathlib import Path
from typing import ClassVar

from formats.core.arrays import Floats
from formats.core.errors import InputError
from opmatrix.files.checkpoint import open_model
from opmatrix.files.loading import PROGRAM
from opmatrix.inference.embed import first_columns, no_rows
from opmatrix.inference.generation import speaks
from opmatrix.inference.scores.scoring import Scoring
from opmatrix.inference.scores.text_pairs import TokenRow, check_scoring, made_batch
from opmatrix.inference.text import LineReading, Tokenizer
from opmatrix.runtime.program import Program
from rewrites.encoders.encoder import open_encoder
from rewrites.encoders.refused import EMBEDDINGS
from rewrites.serving.refusals import Refused, invalid
from rewrites.serving.request_bodies import EmbeddingInput
from rewrites.serving.serving_limits import ServingLimits
from rewrites.workload.phases import Report

LENGTH_ADVICE = "shorten or split it, or start the server with --truncate"


@dataclass(frozen=True, eq=False)
class ServedModel(ABC):
    """A program, and the name by which requests ask for it."""

    name: str
    program: Program

    kind: ClassVar[str]
    paths: ClassVar[tuple[str, ...]]  # the endpoints that it answers

    @property
    def described(self) -> dict[str, object]:
        """The entry of this model in the list of models."""
        return {"id": self.name, "object": "model", "owned_by": "opmatrix", "kind": self.kind}


class ServedEncoder(ServedModel):
    """A model that has a row for each text."""

    @abstractmethod
    def compute(self, rows: Sequence[TokenRow], left: int) -> Floats:
        """Return (S, n): a row for each text. `left`: the number of first tokens of a text that are not pooled."""


class ServedEmbedder(ServedEncoder):
    """A model that embeds texts."""

    kind = "embedding"
    paths = ("/v1/embeddings",)

    def compute(self, rows: Sequence[TokenRow], left: int) -> Floats:
        """Return (S, n): embeddings, bit for bit those of `Program.embed`."""
        vectors = self.program.vectors(made_batch(rows, False)[0], left)
        return next(first_columns([vectors], self.program.pooling.width))

    @cached_property
    def width(self) -> int:
        """The number of columns of an embedding."""
        return int(next(first_columns([no_rows(self.program)], self.program.pooling.width)).shape[1])

    @property
    def described(self) -> dict[str, object]:
        """The entry of this model in the list of models, with its columns."""
        return super().described | {"dimensions": self.width}


class ServedReranker(ServedEncoder):
    """A model that scores pairs of texts by one label."""

    kind = "rerank"
    paths = ("/v1/rerank",)

    def compute(self, rows: Sequence[TokenRow], left: int) -> Floats:
        """Return (S, 1): scores behind the activation, bit for bit those of `Program.score`."""
        scores: Floats = self.program.run(made_batch(rows, self.scoring.kinds)[0])
        return self.scoring.activate(scores)

    @cached_property
    def scoring(self) -> Scoring:
        """The labels and the activation of its head."""
        return check_scoring(self.program)


class ServedSpeaker(ServedModel):
    """A language model, which replies to messages and continues texts."""

    kind = "chat"
    paths = ("/v1/chat/completions", "/v1/completions")


Served = Mapping[str, ServedModel]


def open_served(names: Iterable[str]) -> Served:
    """Open models by their names: directories that `optimize` saved, checkpoints, names of the hub. Each runs once, so
    that its kernels are compiled. Raises InputError for one that does nothing that is served, and for two of one
    name."""
    models: dict[str, ServedModel] = {}
    for name in names:
        model = open_one(name)
        if model.name in models:
            raise InputError(f"{name}: another model is called {model.name}, too: rename one of the directories")
        models[model.name] = model
    return models


def open_one(name: str) -> ServedModel:
    """Open a model and run it once. Raises InputError."""
    program, called = open_served_program(name), name
    if os.path.exists(name):
        called = Path(name).resolve().name
    if speaks(program) and not program.scoring:
        program.generate([[0, 0]], max_tokens=2)
        return ServedSpeaker(called, program)
    model = ServedReranker(called, program) if program.scoring else ServedEmbedder(called, program)
    if program.scoring and (count := len(program.scoring.labels)) != 1:
        raise InputError(f"{name}: it has {count} labels, and documents are ordered by one: serve a reranker")
    model.compute([([0], [0])], 0)
    return model


def open_served_program(name: str) -> Program:
    """Open the program of a directory, or the exact one of a checkpoint. Raises InputError."""
    if not exists(Path(name) / PROGRAM) and (checkpoint := open_model(name)).speaks:
        from rewrites.encoders.language_models import find_exact  # imports all laws; a saved program needs none

        return find_exact(checkpoint, Report(quiet=True))
    return open_encoder(name, EMBEDDINGS)


def find_model(models: Served, name: str | None, path: str) -> ServedModel:
    """Return the model of that name; None: the only one for the endpoint. Raises Refused if there is none, and for a
    model that another endpoint answers for."""
    fitting = [model for model in models.values() if path in model.paths]
    if name is None and len(fitting) == 1:
        return fitting[0]
    there = ", ".join(model.name for model in fitting) or "none"
    if name is None:
        raise invalid(f"model: name one of those that {path} has: {there}", "model")
    if name not in models:
        raise Refused(404, f"model {name!r:.80}: {path} has: {there}", "model", "model_not_found")
    if path not in (answered := models[name].paths):
        raise invalid(f"model {name!r:.80}: it answers {', '.join(answered)}; {path} has: {there}", "model")
    return models[name]


# ---- tokens


def text_reading(limits: ServingLimits, what: str, prompt: str | None = None) -> LineReading:
    """Return the options of reading the texts of a request."""
    return LineReading(f"{what} {{}}".format, limits.truncate, False, LENGTH_ADVICE, prompt, limits.tokens)


def input_rows(tokenizer: Tokenizer, inputs: EmbeddingInput, reading: LineReading) -> list[TokenRow]:
    """Return the tokens of texts, behind the prompt, or the tokens themselves. Raises InputError for a text that cannot
    be read."""
    texts = [text for text in inputs if isinstance(text, str)]
    if texts:
        return [(row, []) for row in tokenizer.rows(texts, reading)]
    if tokenizer.readable.rows is None:
        raise InputError("input has tokens, and the model declares no number of them (vocab_size): give texts")
    return [(checked_ids(tokenizer, ids, reading), []) for ids in inputs if not isinstance(ids, str)]


def checked_ids(tokenizer: Tokenizer, ids: list[int], reading: LineReading) -> list[int]:
    """Return tokens as they enter the model: truncated as texts are. Raises InputError for one that the model has no
    row for."""
    return tokenizer.row(f"{ids[:8]}", ids, None, reading, lambda most: ids[:most])


def check_lengths(rows: Sequence[TokenRow], most: int, reading: LineReading) -> None:
    """Raise InputError, which names the text, for one of more than `most` tokens."""
    for at, (ids, _) in enumerate(rows):
        if len(ids) > most:
            raise InputError(f"{reading.name(at)} has {len(ids)} tokens, and this server takes {most}: {LENGTH_ADVICE}")
