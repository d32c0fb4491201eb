"""The part that embedders and rerankers share: a program by its name, prompts, and the length that texts are truncated
to."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from os.path import exists, isdir
from pathlib import Path
from typing import TypeVar

from formats.core.errors import InputError
from opmatrix.display.progress import ProgressLine
from opmatrix.files.loading import PROGRAM
from opmatrix.inference.pooling import DOCUMENT_PROMPTS, QUERY_PROMPTS, check_similarity
from opmatrix.inference.scores.similarity import MATRICES, PAIRWISE, Similarities
from opmatrix.inference.text import LineReading, Tokenizer
from opmatrix.runtime.program import Program
from rewrites.encoders.embedding_forms import Converted, compare_rows
from rewrites.encoders.refused import EMBEDDINGS, TOKEN_ROWS, refuse_arguments

Portioned = TypeVar("Portioned")


def open_encoder(name: str, task: str, template: str | None = None) -> Program:
    """Return the program of a directory that `optimize` saved, or the exact program of a checkpoint by its name, for a
    task. Raises InputError for a name of neither."""
    if exists(Path(name) / PROGRAM):
        if template is not None:
            raise InputError(f"{name}: chat_template: a saved program has its template: leave it out")
        if task == TOKEN_ROWS:
            raise InputError(f"{name}: its program pools rows of tokens: optimize again with --output rows")
        return Program.load(name)
    from rewrites.encoders.kept_programs import open_kept  # reads checkpoints, which a saved program does not need

    return open_kept(name, task, template)


class Encoder:
    """A program that reads texts, with the names of sentence-transformers. `prompts` by name, and
    `default_prompt_name`, may be changed; the program may not."""

    device = "cpu"
    task = EMBEDDINGS  # the use of models whose files declare none
    usual_prompts: tuple[str, ...] = ()  # names of prompts that every model has, empty unless files or users say more

    def __init__(
        self,
        name: str | os.PathLike[str] | None,
        prompts: Mapping[str, str | None] | None,
        default_prompt_name: str | None,
        where: tuple[str | None, bool],
        unused: Mapping[str, object],
        template: str | None = None,
    ) -> None:
        """Open the program of a model. `where`: a revision on the hub, and whether only local files are taken;
        `unused`: arguments that are refused; `template`: the text that a language model reads of a pair."""
        refuse_arguments(type(self).__name__, unused)
        revision, local = where
        if local and not isdir(str(name)):
            raise InputError(f"local_files_only: {name!r:.60} is no directory: give the directory of its files")
        place = f"{name}@{revision}" if revision else str(name) if name is not None else ""
        self.place = place
        self.program = open_encoder(place, self.task, template)
        declared = self.program.pooling
        every = {**dict.fromkeys(self.usual_prompts), **declared.prompts, **(prompts or {})}
        self.prompts = {key: text or "" for key, text in every.items()}
        named = [key for key, text in declared.prompts.items() if declared.prompt and text == declared.prompt]
        self.default_prompt_name = default_prompt_name or next(iter(named), None)
        self.most: int | None = None
        if self.default_prompt_name is not None:
            self.find_prompt(self.default_prompt_name)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the program."""
        return self.program.tokenizer

    @property
    def max_seq_length(self) -> int | None:
        """The number of tokens that texts are truncated to, special ones included."""
        return self.most or self.tokenizer.most

    @max_seq_length.setter
    def max_seq_length(self, most: int | None) -> None:
        """Truncate texts to fewer tokens; None: to as many as the model takes."""
        if most is not None and (type(most) is not int or most <= self.tokenizer.special):
            raise InputError(f"max_seq_length {most!r:.40}: give a whole number above {self.tokenizer.special}")
        self.most = most

    def find_prompt(self, name: str) -> str:
        """Return the prompt of that name. Raises InputError for an unknown one."""
        if name in self.prompts:
            return self.prompts[name]
        there = ", ".join(self.prompts) or "none"
        raise InputError(f"prompt_name {name!r:.60}: there is no prompt of this name: there are {there}")

    def reading(self, prompt_name: str | None, prompt: str | None) -> LineReading:
        """Return the options of reading texts behind a prompt, or behind that of a name, or the default one."""
        name = self.default_prompt_name if prompt_name is None else prompt_name
        if prompt is None:
            prompt = "" if name is None else self.find_prompt(name)
        if not isinstance(prompt, str):
            raise InputError(f"prompt {prompt!r:.60}: give a text")
        return LineReading(truncate=True, prompt=prompt, most=self.most)

    def usual_name(self, usual: Sequence[str], prompt_name: str | None, prompt: str | None) -> str | None:
        """Return the name of a prompt that is asked for, or else the first of the usual ones that there is."""
        if prompt_name is not None or prompt is not None:
            return prompt_name
        return next((name for name in usual if name in self.prompts), None)


class ComparedEncoder(Encoder, ABC):
    """An encoder whose rows are compared by a function, `similarity_fn_name`."""

    usual_prompts = (QUERY_PROMPTS[0], DOCUMENT_PROMPTS[0])
    similarity_fn_name: str

    @abstractmethod
    def get_embedding_dimension(self) -> int:
        """Return the number of columns of a row."""

    def get_sentence_embedding_dimension(self) -> int:
        """Return the number of columns of a row."""
        return self.get_embedding_dimension()

    def similarity(self, embeddings1: object, embeddings2: object) -> Converted:
        """Return (a, b): the similarity of each of `embeddings1` (a, n) with each of `embeddings2` (b, n)."""
        return self.compare(MATRICES, embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: object, embeddings2: object) -> Converted:
        """Return (a): the similarity of each of `embeddings1` (a, n) with the one of `embeddings2` (a, n) at its
        place."""
        return self.compare(PAIRWISE, embeddings1, embeddings2)

    def compare(self, of: Similarities, first: object, second: object) -> Converted:
        """Return similarities by the function of its name: tensors where torch is imported, else arrays."""
        check_similarity(self.similarity_fn_name, "similarity_fn_name")
        return compare_rows(of, self.similarity_fn_name, first, second)


def portions(items: Iterable[Portioned], size: int, shown: bool | None, of: int) -> Iterator[list[Portioned]]:
    """Yield the items `size` at a time; with `shown`, draw a line of progress on the standard error. Raises InputError
    for a size below 1."""
    if type(size) is not int or size < 1:
        raise InputError(f"batch_size {size!r:.40}: give a whole number above 0")
    left, done, line = iter(items), 0, ProgressLine("texts") if shown else None
    try:
        while portion := [*islice(left, size)]:
            yield portion
            done += len(portion)
            if line:
                line(done, of)
    finally:
        if line:
            line.end()


def read_texts(inputs: object) -> list[str]:
    """Return texts as a list. Raises InputError, which names the first one that is no text, or for what is no sequence
    of texts."""
    if isinstance(inputs, bytes | Mapping) or not hasattr(inputs, "__iter__"):
        raise InputError(f"inputs {inputs!r:.60}: give a text, or a list of texts")
    texts = list(inputs)
    for at, text in enumerate(texts):
        if not isinstance(text, str):
            pair = " (a pair is scored by om.CrossEncoder)" if isinstance(text, list | tuple) else ""
            raise InputError(f"text {at} is {text!r:.60}, no string: give strings{pair}")
    return texts
