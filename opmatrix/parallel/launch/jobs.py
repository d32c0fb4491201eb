"""Jobs of ranks, as JSON: a model, a mesh, a batch, the number of steps. A model is a directory, or a configuration
whose weights are drawn by their names, so every rank has the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any
from zlib import crc32

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.algebra.data import Data
from opmatrix.algebra.term import Operator
from opmatrix.autodiff.learning import TARGETS, cross_entropy
from opmatrix.models import build, head, layout
from opmatrix.models.config import ArraySource, Settings
from opmatrix.parallel.cost.timed_step import cut_batch, mesh_of_chunks
from opmatrix.parallel.sharding.factor_chain import chain, layers
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import Partition, partition
from opmatrix.parallel.train.requested_steps import TrainAsked


@dataclass(frozen=True)
class Job:
    """Forward passes of a batch, steps of training, or steps of decoding."""

    model: str | Settings  # directory of a checkpoint, or a configuration
    axes: Mapping[str, tuple[int, str]]  # ranks and strategy of each axis, the outermost first
    ids: Sequence[Sequence[int]]  # a row of tokens a sequence; one more in training
    steps: int = 1  # number of steps
    seed: int = 0  # seed of the weights of a configuration
    scores: bool = False  # with the head of the vocabulary
    offload: int = 0  # ZeRO stage of the state on the host
    stages: Sequence[int] | None = None  # layers of each pipeline stage
    cuts: Mapping[str, str] | None = None  # how weights are sharded, by patterns of names
    traced: bool = False  # the last step is recorded
    train: Mapping[str, object] | None = None  # request for a step of training (`TrainAsked`)
    decode: bool = False  # a step makes the next token of each prompt, over caches
    node: int = 0  # expert ranks in a node of the mesh
    visits: int = 0  # nodes of the mesh that a row goes to

    def json(self) -> dict[str, object]:
        """Return the job as JSON, which `read` inverts."""
        return asdict(self) | {"ids": np.asarray(self.ids).tolist(), "axes": [[*axis] for axis in self.axes.items()]}

    @classmethod
    def read(cls, found: Mapping[str, object]) -> Job:
        """Read a job from its JSON."""
        axes = {name: (n, strategy) for name, (n, strategy) in found["axes"]}  # type: ignore[attr-defined]
        return cls(**(dict(found) | {"axes": axes}))  # type: ignore[arg-type]

    @property
    def mesh(self) -> Mesh:
        return replace(Mesh.of(**self.axes), **{name: getattr(self, name) for name in OF_A_MESH})

    @property
    def each_step(self) -> bool:
        """True if ranks return a value for every step, and not for the last alone."""
        return self.decode or self.train is not None

    @property
    def learns(self) -> TrainAsked | None:
        """The request for training; None for a job that does not train."""
        return None if self.train is None else TrainAsked(**self.train)  # type: ignore[arg-type]

    @property
    def feed(self) -> Feed:
        """The rows of tokens; in training the next tokens are the targets of the loss."""
        ids = np.asarray(self.ids, np.int64)
        return Feed(ids) if self.train is None else Feed(ids[:, :-1], {TARGETS: ids[:, 1:]})

    def operator(self) -> Operator:
        """Return the model with its numbers; in training with a loss behind it."""
        from opmatrix.files.checkpoint import open_model

        if isinstance(self.model, str):
            model = open_model(self.model).operator()
        else:
            model = drawn_model(self.model, self.seed, self.scores or self.decode or self.train is not None)
        return model if self.train is None else with_loss(model)

    def plan(self, model: Operator | None = None) -> Partition:
        """Return the partition of the model; with an interleaved schedule it has a stage for each chunk. Raises
        InputError for a mesh that it does not fit."""
        (sequences, tokens), mesh = np.shape(self.feed.x), self.mesh
        model = model or self.operator()
        if (asked := self.learns) is not None:
            sequences = cut_batch(sequences, asked.micro_batches)
            mesh = mesh_of_chunks(mesh, asked.kind, len(layers(chain(model, self.cuts))))
        return partition(model, mesh, BatchSizes(sequences, tokens), stages=self.stages, cuts=self.cuts)


OF_A_MESH = {field.name for field in fields(Job)} & {field.name for field in fields(Mesh)} - {"axes"}


def job_mesh(mesh: Mesh) -> dict[str, Any]:
    """Return the fields of a job that describe a mesh."""
    axes = {axis.name: (axis.count, axis.strategy.name) for axis in mesh}
    return {"axes": axes, **{name: getattr(mesh, name) for name in OF_A_MESH}}


def with_loss(model: Operator) -> Operator:
    """Return a model with the loss of its scores of each next token. Raises InputError if it scores no vocabulary."""
    if model.out.cols != model.into.cols:
        raise InputError(
            f"train: the model gives {model.out.cols} features and scores no vocabulary of "
            f"{model.into.cols}: train one with a head, such as GPT-2 or LLaMA"
        )
    return model @ cross_entropy(int(model.out.cols))


def drawn_model(config: Settings, seed: int = 0, scores: bool = False) -> Operator:
    """Return a model of a configuration with drawn weights. Raises InputError if scores are requested and the family
    has no head."""
    if scores and not layout(config).head:
        raise InputError("scores: this family has no head that scores a vocabulary")
    at = drawn_arrays(seed)
    model: Operator = build(config, at)
    return model @ head(config, at) if scores else model


def drawn_arrays(seed: int) -> ArraySource:
    """Return a source of arrays by name: matrices of a scale that keeps rows as large as they are, gains and shifts
    about 1."""

    def at(name: str, *shape: int) -> Data:
        """Draw an array by its name and the seed."""
        rng = np.random.default_rng([seed, crc32(name.encode())])
        numbers = rng.normal(size=shape)
        return Data(1 + 0.1 * numbers if len(shape) == 1 else numbers * max(shape[-2:]) ** -0.5, name)

    return at
