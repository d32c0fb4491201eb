"""Sparse embeddings over a vocabulary (SPLADE: Formal et al. 2021, arXiv:2107.05720) by the calls of
sentence-transformers: its names of parameters, their order and their defaults, by exact programs and without torch."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from formats.core.arrays import Floats
from formats.core.errors import InputError
from opmatrix.inference.embed import BATCH_ROWS, embed_blocks, no_rows
from opmatrix.inference.pooling import DOCUMENT_PROMPTS, QUERY_PROMPTS, check_similarity
from opmatrix.inference.scores.similarity import MATRICES, Similarities
from opmatrix.inference.text import LineReading
from rewrites.encoders.embedding_forms import Converted
from rewrites.encoders.encoder import ComparedEncoder, portions, read_texts
from rewrites.encoders.refused import SPARSE_ROWS, refuse_arguments
from rewrites.encoders.sparse_rows import as_sparse, compare_sparse, convert_sparse, is_sparse, keep_greatest

if TYPE_CHECKING:
    from scipy.sparse import csr_array

BLOCK_NUMBERS = 1 << 24  # numbers of a block: its rows of tokens, as wide as the vocabulary


class SparseEncoder(ComparedEncoder):
    """A model that gives a number for each token of its vocabulary, most of them zero: a name, a directory of a
    checkpoint, or one that `optimize` saved. At first use the exact program is searched for, in seconds, and kept in
    the user's cache. Raises InputError for a model without a head that scores its vocabulary, and for arguments of
    other devices, of torch's modules and of the hub's code."""

    task = SPARSE_ROWS

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
        max_active_dims: int | None = None,
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
        declared = self.program.pooling
        if self.program.scoring or not declared.sparse:
            other = "om.CrossEncoder" if self.program.scoring else "om.SentenceTransformer"
            raise InputError(f"{model_name_or_path}: it has no head that scores its vocabulary: {other}")
        if not self.program.pooled:
            raise InputError(f"{model_name_or_path}: it gives a row for each token: optimize with --output pooled")
        self.similarity_fn_name = similarity_fn_name or declared.similarity or "dot"
        check_similarity(self.similarity_fn_name, "similarity_fn_name")
        self.max_active_dims = check_active(declared.active if max_active_dims is None else max_active_dims)

    # ---- texts to sparse rows

    def encode(
        self,
        inputs: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_tensor: bool = True,
        convert_to_sparse_tensor: bool = True,
        save_to_cpu: bool = False,
        device: str | None = None,
        max_active_dims: int | None = None,
        pool: object = None,
        chunk_size: int | None = None,
        **kwargs: object,
    ) -> Converted:
        """Return a number for each token of the vocabulary and each text (S, v), of one text (v): of torch, where it is
        imported, a sparse tensor, or a dense one without `convert_to_sparse_tensor`; else scipy's CSR, or an array.
        Without `convert_to_tensor` it is a list of rows. `max_active_dims` keeps the greatest numbers of a row. Texts
        are truncated to `max_seq_length`. Raises InputError for what is no text."""
        kwargs.pop("task", None)
        refuse_arguments("encode", dict(device=device, pool=pool, chunk_size=chunk_size) | kwargs)
        single = isinstance(inputs, str)
        texts = [str(inputs)] if single else read_texts(inputs)
        rows = self.encode_csr(texts, prompt_name, prompt, batch_size, show_progress_bar, max_active_dims)
        return convert_sparse(rows, convert_to_sparse_tensor, convert_to_tensor, single)

    def encode_query(
        self,
        inputs: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_tensor: bool = True,
        convert_to_sparse_tensor: bool = True,
        save_to_cpu: bool = False,
        device: str | None = None,
        max_active_dims: int | None = None,
        pool: object = None,
        chunk_size: int | None = None,
        **kwargs: object,
    ) -> Converted:
        """Return the sparse rows of queries, as `encode` does, behind the prompt "query" unless another is named."""
        return self.encode(
            inputs,
            self.usual_name(QUERY_PROMPTS, prompt_name, prompt),
            prompt,
            batch_size,
            show_progress_bar,
            convert_to_tensor,
            convert_to_sparse_tensor,
            save_to_cpu,
            device,
            max_active_dims,
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
        convert_to_tensor: bool = True,
        convert_to_sparse_tensor: bool = True,
        save_to_cpu: bool = False,
        device: str | None = None,
        max_active_dims: int | None = None,
        pool: object = None,
        chunk_size: int | None = None,
        **kwargs: object,
    ) -> Converted:
        """Return the sparse rows of documents, as `encode` does, behind the first of DOCUMENT_PROMPTS that there is,
        unless another is named."""
        return self.encode(
            inputs,
            self.usual_name(DOCUMENT_PROMPTS, prompt_name, prompt),
            prompt,
            batch_size,
            show_progress_bar,
            convert_to_tensor,
            convert_to_sparse_tensor,
            save_to_cpu,
            device,
            max_active_dims,
            pool,
            chunk_size,
            **kwargs,
        )

    def encode_csr(
        self,
        texts: Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        max_active_dims: int | None = None,
    ) -> "csr_array":
        """Return (S, v) as scipy's CSR in float32, whether torch is imported or not: a row for each text. Raises as
        `encode` does."""
        active = check_active(self.max_active_dims if max_active_dims is None else max_active_dims)
        reading, blocks = self.reading(prompt_name, prompt), [as_sparse(no_rows(self.program))]
        for portion in portions(texts, batch_size, show_progress_bar, len(texts)):
            blocks += [as_sparse(keep_greatest(block, active)) for block in self.blocks(portion, reading)]
        from scipy.sparse import csr_array, vstack

        return csr_array(vstack(blocks, "csr"))

    def blocks(self, texts: Sequence[str], reading: LineReading) -> "list[Floats]":
        """Return dense blocks of rows, of as many texts as have BLOCK_NUMBERS scores, or of one."""
        rows = max(1, min(BATCH_ROWS, BLOCK_NUMBERS // self.get_embedding_dimension()))
        return [*embed_blocks(self.program, texts, rows, reading)]

    # ---- what rows are, and how they compare

    def get_embedding_dimension(self) -> int:
        """Return the number of columns of a row: of tokens of the vocabulary."""
        return int(no_rows(self.program).shape[1])

    def compare(self, of: Similarities, first: object, second: object) -> Converted:
        """Return similarities by the function of its name: tensors where torch is imported, else arrays."""
        if is_sparse(first) and is_sparse(second) and of is MATRICES and self.similarity_fn_name == "dot":
            return compare_sparse(first, second)
        return super().compare(of, dense(first), dense(second))


def dense(rows: object) -> object:
    """Return sparse rows as an array, others as they are."""
    return as_sparse(rows).toarray() if is_sparse(rows) else np.asarray(rows)


def check_active(count: int | None) -> int | None:
    """Return a number of numbers of a row that are kept; None for all. Raises InputError for no such number."""
    if count is not None and (type(count) is not int or count < 1):
        raise InputError(f"max_active_dims {count!r:.40}: give a whole number above 0")
    return count
