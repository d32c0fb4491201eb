"""Embeddings by the calls of sentence-transformers: its names of parameters, their order and their defaults, by exact
programs and without torch."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from formats.core.arrays import Floats
from formats.core.errors import InputError
from opmatrix.inference.embed import BATCH_ROWS, batches, embed_blocks, no_rows
from opmatrix.inference.pooling import DOCUMENT_PROMPTS, QUERY_PROMPTS, check_similarity
from opmatrix.inference.text import LineReading
from opmatrix.runtime.program import Program
from rewrites.encoders.embedding_forms import (
    Converted,
    as_tensor,
    check_form,
    converted,
    cut_columns,
    loaded_torch,
    quantise,
    unit_rows,
)
from rewrites.encoders.encoder import ComparedEncoder, open_encoder, portions, read_texts
from rewrites.encoders.refused import BESIDE_TOKENS, TOKEN_ROWS, refuse_arguments

EMBEDDING, TOKEN_VECTORS = "sentence_embedding", "token_embeddings"  # values of `output_value`


@dataclass(frozen=True)
class Wanted:
    """The form in which embeddings are asked for, with the names of `encode`'s parameters."""

    batch_size: int
    show_progress_bar: bool | None
    precision: str
    normalize_embeddings: bool
    truncate_dim: int | None


class SentenceTransformer(ComparedEncoder):
    """A model that embeds texts: a name, a directory of a checkpoint, or one that `optimize` saved. At first use the
    exact program is searched for, in seconds, and kept in the user's cache. Raises InputError for a model that does not
    embed texts, and for arguments of other devices, of torch's modules and of the hub's code."""

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
        use_auth_token: bool | str | None = None,
        model_kwargs: Mapping[str, object] | None = None,
        processor_kwargs: Mapping[str, object] | None = None,
        config_kwargs: Mapping[str, object] | None = None,
        model_card_data: object = None,
        backend: str = "torch",
        similarity_fn_name: str | None = None,
        truncate_dim: int | None = None,
    ) -> None:
        unused = dict(
            modules=modules,
            device=device,
            cache_folder=cache_folder,
            trust_remote_code=trust_remote_code,
            token=token,
            use_auth_token=use_auth_token,
            model_kwargs=model_kwargs,
            processor_kwargs=processor_kwargs,
            config_kwargs=config_kwargs,
            backend=backend,
        )
        super().__init__(model_name_or_path, prompts, default_prompt_name, (revision, local_files_only), unused)
        if self.program.scoring:
            raise InputError(f"{model_name_or_path}: it scores texts and pairs of texts: om.CrossEncoder")
        declared = self.program.pooling
        if declared.sparse:
            raise InputError(f"{model_name_or_path}: it gives sparse rows over its vocabulary: om.SparseEncoder")
        if declared.late:
            raise InputError(f"{model_name_or_path}: it gives rows for late interaction: om.MultiVectorEncoder")
        self.similarity_fn_name = similarity_fn_name or declared.similarity or "cosine"
        check_similarity(self.similarity_fn_name, "similarity_fn_name")
        self.truncate_dim = declared.width if truncate_dim is None else truncate_dim
        cut_columns(no_rows(self.program), self.truncate_dim)

    # ---- texts to embeddings

    def encode(
        self,
        inputs: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str | None = EMBEDDING,
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: object = None,
        chunk_size: int | None = None,
        **kwargs: object,
    ) -> Converted:
        """Return the embeddings of texts (S, n), of one text (n). Texts are truncated to `max_seq_length`; `prompt`, or
        the prompt of `prompt_name`, comes before each. `batch_size` bounds the texts of a run: numbers do not depend on
        it. int8 and uint8 are steps of each column over these very texts. `output_value` "token_embeddings" gives a
        list of the rows of each text's tokens (T, n), special ones too. Raises InputError for what is no text."""
        kwargs.pop("task", None)
        refuse_arguments("encode", dict(device=device, pool=pool, chunk_size=chunk_size) | kwargs)
        if output_value not in (EMBEDDING, TOKEN_VECTORS):
            raise InputError(f"output_value {output_value!r:.40}: there are {EMBEDDING}, {TOKEN_VECTORS}")
        single = isinstance(inputs, str)
        texts = [str(inputs)] if single else read_texts(inputs)
        width = self.truncate_dim if truncate_dim is None else truncate_dim
        wanted = Wanted(batch_size, show_progress_bar, check_form(precision), normalize_embeddings, width)
        if output_value == TOKEN_VECTORS:
            forms = dict(precision=precision, normalize_embeddings=normalize_embeddings, truncate_dim=truncate_dim)
            refuse_arguments(TOKEN_VECTORS, forms | dict(convert_to_tensor=convert_to_tensor), BESIDE_TOKENS)
            rows = self.embed_tokens(texts, self.reading(prompt_name, prompt), wanted)
            return rows[0] if single else rows
        vectors = self.embed(texts, self.reading(prompt_name, prompt), wanted)
        result = vectors if len(texts) else np.array([])
        return converted(result, convert_to_numpy, convert_to_tensor, single)

    def encode_query(
        self,
        inputs: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str | None = EMBEDDING,
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: object = None,
        chunk_size: int | None = None,
        **kwargs: object,
    ) -> Converted:
        """Return the embeddings of queries, as `encode` does, behind the prompt "query" unless another is named."""
        return self.encode(
            inputs,
            self.usual_name(QUERY_PROMPTS, prompt_name, prompt),
            prompt,
            batch_size,
            show_progress_bar,
            output_value,
            precision,
            convert_to_numpy,
            convert_to_tensor,
            device,
            normalize_embeddings,
            truncate_dim,
            pool,
            chunk_size,
            **kwargs,
        )

    def encode_document(
        self,
        inputs: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str | None = EMBEDDING,
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: object = None,
        chunk_size: int | None = None,
        **kwargs: object,
    ) -> Converted:
        """Return the embeddings of documents, as `encode` does, behind the first of DOCUMENT_PROMPTS that there is,
        unless another is named."""
        return self.encode(
            inputs,
            self.usual_name(DOCUMENT_PROMPTS, prompt_name, prompt),
            prompt,
            batch_size,
            show_progress_bar,
            output_value,
            precision,
            convert_to_numpy,
            convert_to_tensor,
            device,
            normalize_embeddings,
            truncate_dim,
            pool,
            chunk_size,
            **kwargs,
        )

    def embed(self, texts: Sequence[str], reading: LineReading, wanted: Wanted) -> Converted:
        """Return the embeddings of texts in the form that is asked for."""
        blocks = [no_rows(self.program)]
        for portion in portions(texts, wanted.batch_size, wanted.show_progress_bar, len(texts)):
            blocks += embed_blocks(self.program, portion, BATCH_ROWS, reading)
        vectors: Floats = cut_columns(np.concatenate(blocks), wanted.truncate_dim)
        if wanted.normalize_embeddings:
            vectors = unit_rows(vectors)
        return quantise(vectors, wanted.precision)

    @cached_property
    def token_program(self) -> Program:
        """The program that gives a row a token: this one unless it pools them, else another that is kept. Raises
        InputError for a directory of a program that pools them."""
        return open_encoder(self.place, TOKEN_ROWS) if self.program.pooled else self.program

    def embed_tokens(self, texts: Sequence[str], reading: LineReading, wanted: Wanted) -> list[Converted]:
        """Return the rows of each text's tokens (T, n): tensors where torch is imported, else arrays."""
        program, texts_rows = self.token_program, list[Floats]()
        for portion in portions(texts, wanted.batch_size, wanted.show_progress_bar, len(texts)):
            for batch in batches(program.tokenizer, portion, BATCH_ROWS, reading):
                texts_rows += np.split(program.run(batch), batch.starts[1:-1])
        return texts_rows if loaded_torch() is None else [as_tensor(rows) for rows in texts_rows]

    # ---- the columns of embeddings

    def get_embedding_dimension(self) -> int:
        """Return the number of columns of an embedding."""
        return int(cut_columns(no_rows(self.program), self.truncate_dim).shape[1])

    @contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Let `encode` give so many columns inside the block."""
        before, self.truncate_dim = self.truncate_dim, truncate_dim
        try:
            yield
        finally:
            self.truncate_dim = before
