"""A program as a module of torch, for users of sentence-transformers: its evaluators and what builds on its classes run
unchanged. Importing this module imports torch."""

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import InputModule

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.inference.embed import BATCH_ROWS, fill, no_rows
from opmatrix.inference.text import LineReading
from opmatrix.runtime.program import Program
from rewrites.encoders.embedding_forms import Converted
from rewrites.encoders.encoder import open_encoder, read_texts
from rewrites.encoders.refused import EMBEDDINGS

Features = dict[str, Converted]  # "input_ids": the tokens of all texts; "offsets": the first one of each; "left"


class ProgramModule(InputModule):
    """A module that gives a "sentence_embedding" (S, n) for texts, pooled and normalised as its program does. It has no
    parameters, runs on the CPU, and gives no gradients. Raises InputError for a program that scores texts."""

    save_in_root = False

    def __init__(self, program: Program) -> None:
        super().__init__()
        if program.scoring is not None:
            raise InputError(f"{program.meta.get('model', 'this program')}: it scores texts and has no embedding")
        if program.pooling.sparse:
            raise InputError(f"{program.meta.get('model', 'this program')}: its rows are sparse: om.SparseEncoder")
        self.program, self.most = program, program.tokenizer.most

    @property
    def tokenizer(self) -> Converted:
        """The tokenizer, as its library has it."""
        return self.program.tokenizer.tokenizer

    @property
    def max_seq_length(self) -> int | None:
        """The number of tokens that texts are truncated to."""
        return self.most

    @max_seq_length.setter
    def max_seq_length(self, most: int | None) -> None:
        """Truncate texts to fewer tokens."""
        self.most = most

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **kwargs: object) -> Features:
        """Return the tokens of texts behind a prompt, and the number of rows of the prompt that are not pooled. Raises
        InputError for what is no text."""
        reading = LineReading(truncate=True, prompt=prompt or "", most=self.most)
        rows = self.program.tokenizer.rows(read_texts(inputs), reading)
        starts = [*accumulate(map(len, rows), initial=0)]
        return {
            "input_ids": torch.tensor([*chain.from_iterable(rows)], dtype=torch.int64),
            "offsets": torch.tensor(starts, dtype=torch.int64),
            "left": self.program.tokenizer.left_out(reading),
        }

    def forward(self, features: Features, **kwargs: object) -> Features:
        """Add the embeddings of the texts."""
        ids, starts = features["input_ids"].tolist(), features["offsets"].tolist()
        rows = [ids[low:high] for low, high in pairwise(starts)]
        blocks = [self.program.vectors(Batch(part), features["left"]) for part in fill(rows, len, BATCH_ROWS)]
        features["sentence_embedding"] = torch.cat([torch.as_tensor(block) for block in blocks])
        return features

    def get_embedding_dimension(self) -> int:
        """Return the number of columns of an embedding."""
        return int(no_rows(self.program).shape[1])

    def save(self, output_path: str, *args: object, safe_serialization: bool = True, **kwargs: object) -> None:
        """Save the program, without torch's files."""
        self.program.save(output_path)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: object) -> "ProgramModule":
        """Load the program of a directory, or of a folder in it."""
        return cls(Program.load(Path(model_name_or_path) / subfolder))


def as_sentence_transformer(model: str | Path | Program) -> SentenceTransformer:
    """Return a SentenceTransformer that runs a program, or that of a name or directory, as `om.SentenceTransformer`
    opens it, with its prompts, similarity and width. Saved and opened again it needs trust_remote_code=True, as every
    module from outside sentence-transformers does. Raises InputError for a model that does not embed texts."""
    program = model if isinstance(model, Program) else open_encoder(str(model), EMBEDDINGS)
    declared = program.pooling
    named = [name for name, text in declared.prompts.items() if declared.prompt and text == declared.prompt]
    return SentenceTransformer(
        modules=[ProgramModule(program)],
        device="cpu",
        prompts={**declared.prompts} or None,
        default_prompt_name=named[0] if named else None,
        similarity_fn_name=declared.similarity,
        truncate_dim=declared.width,
    )
