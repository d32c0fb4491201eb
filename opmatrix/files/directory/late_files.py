"""The entries of files by which a model gives rows for late interaction (ColBERT), as sentence-transformers writes them
from version 6 on. No class that a file names is imported."""

from pathlib import Path

from formats.core.errors import InputError
from opmatrix.files.directory.declared import (
    IGNORED_KEYS,
    PROMPTS_KEYS,
    USUAL,
    DeclaredEntries,
    check_normalize,
    default_prompt,
    list_modules,
    read_entries,
    read_prompts,
    text_limits,
)
from opmatrix.files.directory.model_files import CONFIG, PROMPTS, TOKENIZER_CONFIG, TRANSFORMER
from opmatrix.inference.pooling import LATE_SIMILARITIES, Pooling, expect
from opmatrix.inference.scores.late_rows import DOCUMENT, LENGTH_KEYS, LateRows, read_count, read_words

LATE_MODEL = "MultiVectorEncoder"  # the model_type of a model that gives such rows
TOKEN_VALUE = "token_embeddings"
KNOWN_LATE = {
    "Transformer": ("",),
    "Dense": ("Transformer", "Dense"),
    "MultiVectorMask": ("Transformer", "Dense"),
    "Normalize": ("Transformer", "Dense", "MultiVectorMask"),
}
FILLINGS = "fixed", "min"  # of the filling of queries


def declares_late(directory: Path) -> bool:
    """True if files beside a checkpoint declare that it gives rows for late interaction."""
    return read_entries(directory / PROMPTS, absent=True).said.get("model_type") == LATE_MODEL


def read_late(directory: Path, positions: int) -> Pooling:
    """Read the treatment of texts and rows that the files beside a checkpoint declare. Raises InputError that names the
    file and the unsupported entry."""
    beside = read_entries(directory / PROMPTS, absent=True)
    beside.usual("model_type", LATE_MODEL)
    beside.only({*PROMPTS_KEYS}, empty=True)
    folders = list_modules(directory, KNOWN_LATE, "MultiVectorMask")
    longest, lower = text_limits(directory, USUAL, (*IGNORED_KEYS, "query_expansion"))
    most = positions if longest is None else min(longest, positions)
    for folder in folders["Normalize"]:
        check_normalize(folder / CONFIG, TOKEN_VALUE)
    similarity = beside.said.get("similarity_fn_name") or LATE_SIMILARITIES[0]
    expect(similarity in LATE_SIMILARITIES, beside.at("similarity_fn_name"), similarity, " or ".join(LATE_SIMILARITIES))
    return Pooling(
        normalise=bool(folders["Normalize"]),
        max_seq_length=most,
        prompt=default_prompt(beside),
        lower=lower,
        prompts=read_prompts(beside),
        layers=tuple(folder.name for folder in folders["Dense"]),
        similarity=str(similarity),
        late=late_rows(directory, read_entries(folders["MultiVectorMask"][0] / CONFIG), positions),
    )


def late_rows(directory: Path, mask: DeclaredEntries, positions: int) -> LateRows:
    """Read the lengths of texts of each task, the filling of queries, and the tokens whose rows are left out."""
    mask.only({"skiplist_words", "skiplist_tasks"}, empty=True)
    file = next((directory / name for name in TRANSFORMER if (directory / name).exists()), directory / TRANSFORMER[0])
    entries = read_entries(file, absent=True)
    queries, documents = (read_count(entries.said.get(key), entries.at(key)) for key in LENGTH_KEYS)
    filler, floor, fixed = read_filling(entries, directory)
    if floor > positions:
        raise InputError(f"{entries.at('query_expansion')}: length is {floor}: the model has {positions} positions")
    if floor and queries is not None and queries < floor:
        raise InputError(f"{entries.at('query_length')} is {queries}: queries are filled up to {floor} tokens")
    words = read_words(mask.said.get("skiplist_words") or [], mask.at("skiplist_words"))
    tasks = mask.said.get("skiplist_tasks")
    read = read_words([DOCUMENT] if tasks is None else tasks, mask.at("skiplist_tasks"))
    return LateRows(queries, documents, filler, floor, fixed, words, read)


def read_filling(entries: DeclaredEntries, directory: Path) -> tuple[str, int, bool]:
    """Read the token that fills short queries, the number of tokens that they then have, and whether longer ones are
    truncated to as many; empty, 0 and false where none are filled. Raises InputError for fillers that other tokens do
    not see."""
    value, where = entries.said.get("query_expansion"), entries.at("query_expansion")
    if value is None:
        return "", 0, False
    known = isinstance(value, dict) and {*value} <= {"strategy", "attend", "token", "length"}
    expect(known, where, value, "an object of strategy, attend, token and length")
    assert isinstance(value, dict)
    expect(value.get("strategy") in FILLINGS, f"{where}: strategy", value.get("strategy"), " or ".join(FILLINGS))
    if value.get("attend", False) is not True:
        raise InputError(
            f"{where}: attend is {value.get('attend', False)!r:.20}: tokens that fill queries and that no other token "
            "sees are not supported: take a model without query_expansion, or one trained with attend true"
        )
    length = read_count(value.get("length"), f"{where}: length")
    expect(length is not None, f"{where}: length", length, "a whole number above 0")
    words = read_entries(directory / TOKENIZER_CONFIG, absent=True)
    filler = value.get("token") or words.said.get("mask_token") or words.said.get("eos_token")
    filler = filler.get("content") if isinstance(filler, dict) else filler  # as older files write a token
    expect(isinstance(filler, str), f"{where}: token", filler, "a token")
    return str(filler), int(length or 0), value["strategy"] == FILLINGS[0]
