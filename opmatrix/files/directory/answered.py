"""The entries of files by which a language model scores pairs: the tokens whose scores behind the last one of a text
are its answer (Nogueira et al. 2020, arXiv:2003.06713), as sentence-transformers writes them."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from formats.core.errors import InputError
from formats.disk.files import read_json
from opmatrix.files.directory.declared import (
    IGNORED_KEYS,
    PROMPTS_KEYS,
    SCORES,
    DeclaredEntries,
    default_prompt,
    list_modules,
    read_entries,
    read_prompts,
    text_limits,
)
from opmatrix.files.directory.model_files import CONFIG, MODULES, PROMPTS
from opmatrix.files.directory.pair_templates import parse_template, read_template
from opmatrix.files.directory.scored import read_activation
from opmatrix.inference.pooling import Pooling, expect
from opmatrix.inference.scores.pair_template import PairTemplate
from opmatrix.inference.scores.scoring import Scoring

if TYPE_CHECKING:
    from opmatrix.models.config import AnswerDecoder

KNOWN_ANSWERS = {"Transformer": ("",), "LogitScore": ("Transformer",)}
ANSWER_TASK = {"transformer_task": "text-generation", "module_output_name": "causal_logits"}
YES, NO = "yes", "no"  # tokens of models whose files name none


class AnswerTokens(NamedTuple):
    """The ids of the tokens whose scores, one less the other, are the score of a pair; without `no` the first alone."""

    yes: int
    no: int | None


def declares_answers(directory: Path) -> bool:
    """True if files beside a checkpoint declare that it scores pairs by tokens of its vocabulary."""
    beside = read_entries(directory / PROMPTS, absent=True)
    if beside.said.get("model_type") != SCORES or not (directory / MODULES).exists():
        return False
    listed = read_json(directory / MODULES)
    entries = listed if isinstance(listed, list) else []
    return any(isinstance(entry, dict) and str(entry.get("type")).endswith(".LogitScore") for entry in entries)


def read_answer(directory: Path, vocabulary: int) -> AnswerTokens:
    """Read the ids of the tokens. Raises InputError that names the file and the entry."""
    [folder] = list_modules(directory, KNOWN_ANSWERS, "LogitScore")["LogitScore"]
    entries = read_entries(folder / CONFIG)
    entries.only({"true_token_id", "false_token_id", "module_input_name"})
    entries.usual("module_input_name", "causal_logits")
    yes, no = (read_id(entries, f"{name}_token_id", vocabulary) for name in ("true", "false"))
    expect(yes is not None, entries.at("true_token_id"), yes, "an id of a token")
    return AnswerTokens(int(yes or 0), no)


def read_id(entries: DeclaredEntries, key: str, vocabulary: int) -> int | None:
    """Read the id of a token, or None. Raises InputError that names the entry."""
    value = entries.said.get(key)
    fits = value is None or (type(value) is int and 0 <= value < vocabulary)
    expect(fits, entries.at(key), value, f"an id below {vocabulary}")
    return value if isinstance(value, int) else None


def usual_answer(ids: Mapping[str, int | None], where: Path) -> AnswerTokens:
    """Return the ids of the words for yes and no. Raises InputError for a tokenizer without them."""
    (first, yes), (second, no) = ids.items()
    if yes is None or no is None:
        raise InputError(f"{where}: it has no tokens {first!r} and {second!r}, by which a language model scores pairs")
    return AnswerTokens(yes, no)


def read_answering(
    config: Mapping[str, object], directory: Path, template: str | None = None, decoder: "AnswerDecoder | None" = None
) -> Scoring:
    """Read the scoring of pairs: one label, by default a sigmoid of it, which is the share of the word for yes beside
    that for no; and the text that a pair is put into: `template`, that of the files, or else that of a decoder."""
    activation = read_activation(DeclaredEntries(directory / CONFIG, dict(config)), directory)
    pairs = read_template(directory) if template is None else parse_template(template, "chat_template")
    if pairs is None and decoder is not None:
        pairs = PairTemplate(decoder.pieces)
    return Scoring((YES,), activation or "sigmoid", template=pairs)


def read_answered_texts(directory: Path, positions: int) -> Pooling:
    """Read the treatment of texts: the instruction that files name as their default, and the number of tokens that a
    pair is truncated to. Raises InputError that names the file and the entry."""
    beside = read_entries(directory / PROMPTS, absent=True)
    beside.usual("model_type", SCORES)
    beside.only({*PROMPTS_KEYS, "activation_fn"}, empty=True)
    longest, lower = text_limits(directory, ANSWER_TASK, (*IGNORED_KEYS, "modality_config"))
    most = positions if longest is None else min(longest, positions)
    return Pooling(("lasttoken",), False, most, default_prompt(beside), lower, read_prompts(beside))
