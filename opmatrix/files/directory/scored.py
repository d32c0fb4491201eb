"""The entries of files by which a model scores texts: its labels, the activation of its scores, and the treatment of
pairs. No class that a file names is imported."""

from collections.abc import Mapping
from pathlib import Path

from opmatrix.files.directory.declared import (
    IGNORED_KEYS,
    PROMPTS_KEYS,
    SCORES,
    DeclaredEntries,
    default_prompt,
    read_entries,
    read_prompts,
    text_limits,
)
from opmatrix.files.directory.model_files import CONFIG, PROMPTS
from opmatrix.files.directory.tokenizer_files import gives_kinds
from opmatrix.inference.pooling import Pooling, check_text, expect
from opmatrix.inference.scores.scoring import IDENTITY, Scoring, torch_activation

TASK = {
    "transformer_task": "sequence-classification",
    "module_output_name": "scores",
    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
}
LABELS = 2  # number of labels of a config that gives none, as transformers reads it
MOST_LABELS = 1 << 20
OLD_ACTIVATION = "sbert_ce_default_activation_function"


def read_scoring(config: Mapping[str, object], directory: Path) -> Scoring:
    """Read the scoring that a config and the files beside it declare. By default a single score is a sigmoid, and
    several are as they are. Raises InputError that names the file and the entry."""
    labels = read_labels(DeclaredEntries(directory / CONFIG, dict(config)))
    named = read_activation(DeclaredEntries(directory / CONFIG, dict(config)), directory)
    activation = named or usual_activation(labels)
    count = config.get("type_vocab_size")
    kinds = isinstance(count, int) and count > 1
    return Scoring(labels, activation, kinds and gives_kinds(directory, config))


def read_file_scoring(config: Mapping[str, object], file: Path) -> Scoring:
    """Read the scoring of a GGUF file, by the config that its keys make: such files tell no activation. A tokenizer of
    unigrams gives all tokens of a pair the first kind."""
    labels, count = read_labels(DeclaredEntries(file, dict(config))), config.get("type_vocab_size")
    return Scoring(labels, usual_activation(labels), isinstance(count, int) and count > 1)


def usual_activation(labels: tuple[str, ...]) -> str:
    """Return the activation where files name none: a sigmoid of a single score."""
    return "sigmoid" if len(labels) == 1 else IDENTITY


def read_labels(entries: DeclaredEntries) -> tuple[str, ...]:
    """Read the names of labels, in the order of their numbers."""
    named = entries.said.get("id2label")
    if named is None:
        count = entries.said.get("num_labels", LABELS)
        whole = type(count) is int and 0 < count <= MOST_LABELS
        expect(whole, entries.at("num_labels"), count, "a whole number above 0")
        return tuple(f"LABEL_{number}" for number in range(int(str(count))))
    numbered = isinstance(named, dict) and named.keys() == {str(number) for number in range(len(named))}
    expect(numbered and bool(named), entries.at("id2label"), named, "a name for each of the numbers from 0 on")
    assert isinstance(named, dict)
    return tuple(check_text(named[str(number)], entries.at("id2label")) for number in range(len(named)))


def read_activation(config: DeclaredEntries, directory: Path) -> str | None:
    """Read the activation that files name, the newer entry first; None if none does."""
    beside = read_entries(directory / PROMPTS, absent=True)
    nested = config.said.get("sentence_transformers")
    within = DeclaredEntries(config.file, nested if isinstance(nested, dict) else {})
    for entries, key in ((beside, "activation_fn"), (within, "activation_fn"), (config, OLD_ACTIVATION)):
        if (value := entries.said.get(key)) is not None:
            return torch_activation(value, entries.at(key))
    return None


def read_texts(directory: Path, positions: int) -> Pooling:
    """Read the treatment of texts before they are scored: the default prompt, and the number of tokens that a text or a
    pair is truncated to. Raises InputError that names the file and the entry."""
    beside = read_entries(directory / PROMPTS, absent=True)
    beside.usual("model_type", SCORES)
    beside.only({*PROMPTS_KEYS, "activation_fn"}, empty=True)
    longest, lower = text_limits(directory, TASK, IGNORED_KEYS)
    most = positions if longest is None else min(longest, positions)
    return Pooling(("cls",), False, most, default_prompt(beside), lower, read_prompts(beside))
