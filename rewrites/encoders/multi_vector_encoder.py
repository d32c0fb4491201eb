"""Rows of tokens for late interaction (ColBERT: Khattab and Zaharia 2020, arXiv:2004.12832) by the calls of
sentence-transformers: its names of parameters, their order and their defaults, by exact programs and without torch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from formats.core.arrays import Floats
from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.inference.embed import BATCH_ROWS, fill
from opmatrix.inference.pooling import (
    DOCUMENT_PROMPTS,
    LATE_SIMILARITIES,
    QUERY_PROMPTS,
    check_similarity,
    normalise_rows,
)
from opmatrix.inference.scores.late_interaction import as_texts, late_scores, pairwise_late_scores
from opmatrix.inference.scores.late_rows import DOCUMENT, QUERY_TASK, TASKS, LateRows
from opmatrix.inference.text import LineReading
from rewrites.encoders.embedding_forms import Converted, as_tensor, loaded_torch
from rewrites.encoders.encoder import Encoder, portions, read_texts
from rewrites.encoders.refused import AS_DECLARED, LATE_ROWS, refuse_arguments


@dataclass(frozen=True)
class RowsRequest:
    """The form in which rows of tokens are asked for, with the names of `encode`'s parameters."""

    batch_size: int
    show_progress_bar: bool | None
    normalize_embeddings: bool
    task: str | None


class MultiVectorEncoder(Encoder):
    """A model that gives a row for each token of a text, and scores of queries and documents by their rows: a name, a
    directory of a checkpoint, or one that `optimize` saved. At first use the exact program is searched for, in seconds,
    and kept in the user's cache. Raises InputError for a model whose files declare no such rows, and for arguments of
    other devices, of torch's modules and of the hub's code."""

    task = LATE_ROWS
    usual_prompts = TASKS

    def __init__(
        self,
        model_name_or_path: str | None = None,
        *,
        modules: object = None,
        device: str | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        cache_folder: str | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
        local_files_only: bool = False,
        token: bool | str | None = None,
        model_kwargs: Mapping[str, object] | None = None,
        processor_kwargs: Mapping[str, object] | None = None,
        config_kwargs: Mapping[str, object] | None = None,
        model_card_data: object = None,
        backend: str = "torch",
        similarity_fn_name: str | None = None,
    ) -> None:
        unused = dict(
            modules=modules,
            device=device,
            cache_folder=cache_folder,
            trust_remote_code=trust_remote_code,
            token=token,
            model_kwargs=model_kwargs,
            processor_kwargs=processor_kwargs,
            config_kwargs=config_kwargs,
            backend=backend,
        )
        super().__init__(model_name_or_path, prompts, default_prompt_name, (revision, local_files_only), unused)
        late = self.program.pooling.late
        if late is None:
            raise InputError(f"{model_name_or_path}: it gives no rows for late interaction: om.SentenceTransformer")
        self.late: LateRows = late
        self.similarity_fn_name = similarity_fn_name or self.program.pooling.similarity or LATE_SIMILARITIES[0]
        check_similarity(self.similarity_fn_name, "similarity_fn_name", LATE_SIMILARITIES)

    # ---- texts to rows

    def encode(
        self,
        inputs: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str | None = "token_embeddings",
        convert_to_numpy: bool = False,
        device: str | None = None,
        normalize_embeddings: bool = False,
        pool: object = None,
        chunk_size: int | None = None,
        token_pooling: object = None,
        task: str | None = None,
        **kwargs: object,
    ) -> Converted:
        """Return a list of the rows of each text's tokens (T, n), of one text its rows: tensors where torch is
        imported, unless `convert_to_numpy`; else arrays. `task`, "query" or "document", gives their length, the filling
        of queries, and the tokens whose rows are left out. Raises InputError for what is no text, and for a task that
        is neither."""
        beside = dict(output_value=output_value, device=device, pool=pool, chunk_size=chunk_size)
        refuse_arguments("encode", beside | dict(token_pooling=token_pooling) | kwargs, AS_DECLARED)
        if task not in (None, *TASKS):
            raise InputError(f"task {task!r:.40}: there are {', '.join(TASKS)}")
        single = isinstance(inputs, str)
        texts = [str(inputs)] if single else read_texts(inputs)
        reading = self.reading(prompt_name, prompt)
        reading.most = min(filter(None, [reading.most, self.late.longest(task)]), default=None)
        asked = RowsRequest(batch_size, show_progress_bar, normalize_embeddings, task)
        rows = [*self.rows_of(texts, reading, asked)]
        if not convert_to_numpy and loaded_torch() is not None:
            return as_tensor(rows[0]) if single else [as_tensor(text) for text in rows]
        return rows[0] if single else rows

    def encode_query(
        self,
        inputs: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str | None = "token_embeddings",
        convert_to_numpy: bool = False,
        device: str | None = None,
        normalize_embeddings: bool = False,
        pool: object = None,
        chunk_size: int | None = None,
        token_pooling: object = None,
        **kwargs: object,
    ) -> Converted:
        """Return the rows of queries, as `encode` does, behind the prompt "query" unless another is named."""
        return self.encode(
            inputs,
            self.usual_name(QUERY_PROMPTS, prompt_name, prompt),
            prompt,
            batch_size,
            show_progress_bar,
            output_value,
            convert_to_numpy,
            device,
            normalize_embeddings,
            pool,
            chunk_size,
            token_pooling,
            QUERY_TASK,
            **kwargs,
        )

    def encode_document(
        self,
        inputs: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str | None = "token_embeddings",
        convert_to_numpy: bool = False,
        device: str | None = None,
        normalize_embeddings: bool = False,
        pool: object = None,
        chunk_size: int | None = None,
        token_pooling: object = None,
        **kwargs: object,
    ) -> Converted:
        """Return the rows of documents, as `encode` does, behind the first of DOCUMENT_PROMPTS that there is,
        unless another is named."""
        return self.encode(
            inputs,
            self.usual_name(DOCUMENT_PROMPTS, prompt_name, prompt),
            prompt,
            batch_size,
            show_progress_bar,
            output_value,
            convert_to_numpy,
            device,
            normalize_embeddings,
            pool,
            chunk_size,
            token_pooling,
            DOCUMENT,
            **kwargs,
        )

    def rows_of(self, texts: Sequence[str], reading: LineReading, asked: RowsRequest) -> Iterator[Floats]:
        """Yield the rows of each text."""
        for portion in portions(texts, asked.batch_size, asked.show_progress_bar, len(texts)):
            tokens = [
                self.late.filled(row, self.filler, asked.task) for row in self.program.tokenizer.rows(portion, reading)
            ]
            for part in fill(tokens, len, BATCH_ROWS):
                batch = Batch(part)
                computed = np.split(self.program.run(batch), batch.starts[1:-1])
                for row, text_rows in zip(part, computed, strict=True):
                    kept = text_rows[self.late.kept(row, self.skipped, asked.task)]
                    yield normalise_rows(kept) if asked.normalize_embeddings else kept

    @cached_property
    def filler(self) -> int:
        """The id of the token that fills short queries, 0 where none does. Raises InputError for one that the
        vocabulary has not."""
        if not self.late.floor:
            return 0
        at = self.tokenizer.tokenizer.token_to_id(self.late.filler)
        if at is None:
            raise InputError(
                f"{self.place}: the token {self.late.filler!r:.40}, which fills queries, is in no vocabulary"
            )
        return int(at)

    @cached_property
    def skipped(self) -> frozenset[int]:
        """The ids of the tokens whose rows are left out. Words that are no token are passed over, as the peer does."""
        ids = map(self.tokenizer.tokenizer.token_to_id, self.late.skipped)
        return frozenset(at for at in ids if at is not None)

    # ---- what rows are, and how they compare

    def get_embedding_dimension(self) -> int:
        """Return the number of columns of a row."""
        return int(self.program.run(Batch([[0]])).shape[1])

    def similarity(self, embeddings1: object, embeddings2: object, **kwargs: object) -> Converted:
        """Return (a, b): the score of each query's rows in `embeddings1` with each document's in `embeddings2`: lists
        of (T, n), arrays (S, T, n), or the rows of one text. `length_normalize`: divide by the query's rows, or not,
        whatever the function's name says. Raises InputError for rows of different lengths."""
        queries, documents = as_texts(embeddings1, "embeddings1"), as_texts(embeddings2, "embeddings2")
        return given_form(late_scores(queries, documents, self.averages(kwargs)))

    def similarity_pairwise(self, embeddings1: object, embeddings2: object, **kwargs: object) -> Converted:
        """Return (a): the score of each query's rows in `embeddings1` with the document's at its place in
        `embeddings2`; forms and `length_normalize` as in `similarity`."""
        queries, documents = as_texts(embeddings1, "embeddings1"), as_texts(embeddings2, "embeddings2")
        return given_form(pairwise_late_scores(queries, documents, self.averages(kwargs)))

    def averages(self, arguments: Mapping[str, object]) -> bool:
        """Return true where scores are divided by the rows of a query. Raises InputError for other arguments."""
        others = dict(arguments)
        usual = (
            check_similarity(self.similarity_fn_name, "similarity_fn_name", LATE_SIMILARITIES) == LATE_SIMILARITIES[1]
        )
        divided = others.pop("length_normalize", usual)
        refuse_arguments("similarity", others, {"device": AS_DECLARED["device"]})
        if not isinstance(divided, bool):
            raise InputError(f"length_normalize {divided!r:.40}: give true or false")
        return divided


def given_form(scores: Floats) -> Converted:
    """Return scores as a tensor where torch is imported, else as they are."""
    return scores if loaded_torch() is None else as_tensor(scores)
