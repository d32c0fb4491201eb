"""The entries of files by which a model gives sparse rows over its vocabulary (SPLADE), as sentence-transformers writes
them. No class that a file names is imported."""

from pathlib import Path

from opmatrix.files.directory.declared import (
    IGNORED_KEYS,
    DeclaredEntries,
    default_prompt,
    list_modules,
    read_entries,
    read_prompts,
    text_limits,
)
from opmatrix.files.directory.model_files import CONFIG, PROMPTS
from opmatrix.inference.pooling import SIMILARITIES, SPARSE_FORMS, STRATEGIES, Pooling, check_count, expect

SPARSE_MODEL = "SparseEncoder"  # the model_type of a model that gives sparse rows
KNOWN_SPARSE = {"Transformer": ("",), "MLMTransformer": ("",), "SpladePooling": ("Transformer", "MLMTransformer")}
SPARSE_TASK = {
    "transformer_task": "fill-mask",
    "module_output_name": "token_embeddings",
    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
}
WIDTHS = "embedding_dimension", "word_embedding_dimension"  # the model says so itself


def declares_sparse(directory: Path) -> bool:
    """True if files beside a checkpoint declare that it gives sparse rows."""
    return read_entries(directory / PROMPTS, absent=True).said.get("model_type") == SPARSE_MODEL


def read_sparse(directory: Path, positions: int) -> Pooling:
    """Read the treatment of texts and rows that the files beside a checkpoint declare. Raises InputError that names the
    file and the unsupported entry."""
    folders = list_modules(directory, KNOWN_SPARSE, "SpladePooling")
    beside = read_entries(directory / PROMPTS, absent=True)
    pooling = read_entries(folders["SpladePooling"][0] / CONFIG)
    pooling.only({*WIDTHS, "pooling_strategy", "activation_function"}, empty=True)
    return sparse_pooling(
        directory,
        positions,
        one_of(pooling, "pooling_strategy", STRATEGIES),
        one_of(pooling, "activation_function", SPARSE_FORMS),
        beside,
    )


def plain_sparse(directory: Path, positions: int) -> Pooling:
    """Read the treatment of texts by a checkpoint without a modules.json whose head scores the vocabulary, as
    sentence-transformers takes it: the maximum over rows."""
    return sparse_pooling(directory, positions, "max", "relu", DeclaredEntries(directory / PROMPTS, {}))


def sparse_pooling(directory: Path, positions: int, strategy: str, form: str, beside: DeclaredEntries) -> Pooling:
    """Return the pooling of sparse rows with the entries about texts."""
    longest, lower = text_limits(directory, SPARSE_TASK, IGNORED_KEYS)
    similarity = beside.said.get("similarity_fn_name")
    return Pooling(
        (strategy,),
        False,
        positions if longest is None else min(longest, positions),
        default_prompt(beside),
        lower,
        read_prompts(beside),
        similarity=similarity if similarity in SIMILARITIES else None,
        sparse=form,
        active=check_count(beside.said.get("max_active_dims"), beside.at("max_active_dims")),
    )


def one_of(entries: DeclaredEntries, key: str, names: "tuple[str, ...] | dict[str, int]") -> str:
    """Return an entry that is one of some names, the first by default. Raises InputError that names its place."""
    value = entries.said.get(key, next(iter(names)))
    expect(value in names, entries.at(key), value, f"one of {', '.join(names)}")
    return str(value)
