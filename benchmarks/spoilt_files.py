"""Files that were mutated, and directories of models of which one key was changed."""

from __future__ import annotations

import json
import logging
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from lib import command
from lib.command import Figure, Parser, concluded, count, listed, named, say, tabled, takes, whole
from lib.saved_models import POSITIONS, ROWS, SAVED, SavedFamily, save

import hostile
import numpy as np
from hostile import BAD, OUTCOMES, Outcome, judged
from numpy.typing import NDArray

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.display.tables import table
from opmatrix.files.checkpoint import open_model
from opmatrix.inference.text import Tokenizer, unpanicked

# ---- hostile

SHARE = 2000  # files that one child reads
COLUMNS = ("kind", "files", *OUTCOMES)


def measure(files: int, processes: int, seed: int) -> list[Outcome]:
    """The outcomes of so many files; those that must not be are printed as they come."""

    def share(first: int) -> list[Outcome]:
        found = []
        for each in judged(seed, first, min(first + SHARE, files)):
            found.append(each)
            if each.outcome in BAD:
                print(f"{each.outcome}: file {each.at}, {each.kind}: {each.said}", flush=True)
        say(f"{min(first + SHARE, files)} files")
        return found

    with ThreadPoolExecutor(processes) as pool:
        return [each for found in pool.map(share, range(0, files, SHARE)) for each in found]


def measure_hostile() -> int:
    """Read mutated files of every kind that is read, and judge the outcomes.

        python benchmarks/spoilt_files.py hostile [--files 100000] [--processes 2] [--seed 0] [--csv OUT]

    Each child process reads a share of them, as tests/support/hostile.py says: structured mutations first (entries
    dropped, doubled, of another type, huge, negative, nested, renamed, exchanged; code wherever a number or a name
    stands), and damage that knows of nothing. A program whose hash no longer fits is given the hash that it has and
    read again. `refused`: in one line that names the file. `same`: read, with the same result. `other`: read with
    other numbers, where no hash spoke against it or a fitting one was made. What must not be: `changed` (other
    numbers though the hash did not fit), `error` (anything but such a line), `memory` (3 GB), `crash`, `hang` (two
    minutes), `code` (run, compiled, imported, started, or a file written elsewhere)."""
    parser = Parser(measure_hostile)
    parser.add_argument("--files", type=count, default=100_000)
    parser.add_argument("--processes", type=count, default=2)
    parser.add_argument("--seed", type=whole, default=0)
    options = parser.parse_args()
    takes(5 + 0.012 * options.files * 2 / options.processes)
    start = time.perf_counter()
    rows = hostile.table(measure(options.files, options.processes, options.seed))
    for kind, *counts in (COLUMNS, *rows):
        print(f"{kind:<44}" + "".join(f"{count:>9}" for count in counts))
    print(f"{time.perf_counter() - start:.0f} s")
    tabled(options.csv, [COLUMNS, *rows])
    wrong = sum(rows[-1][2 + OUTCOMES.index(bad)] for bad in BAD)
    concluded(options, [Figure(f"files of {rows[-1][1]} that did what must not be", wrong, most=0)])
    return int(bool(wrong))


# ---- changed

CLOSE = 1e-4  # of the largest number: sums in another order
MOST_REFUSED = 0.15
TEXTS = [
    "the river runs dry.",
    "The Bank  of the RIVER?",
    " dry, the",
    "Caf\u00e9 cafe\u0301 \u00e9",
    "un \u6cb3 bank",
    "a [MASK] the [SEP]dry",
    "the<s> </s>river <unk> <mask>",
    "of <|endoftext|> <|im_start|>the",
]
LONG = "the bank of the river runs dry " * 5
MODEL, WORDS, OLD, TOKENIZER = "config.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.json"
KEPT = "model.safetensors", "model.safetensors.index.json", TOKENIZER, MODEL, "modules.json", "1_Pooling/config.json"
ADDED: dict[str, dict[str, list[Any]]] = {  # values of keys that files may have and these lack
    MODEL: {
        "tie_word_embeddings": [True, False],
        "rope_theta": [500.0],
        "tokenizer_class": ["PreTrainedTokenizerFast"],
        "rope_scaling": [{"type": "linear", "factor": 2.0}],
        "sliding_window": [3],
        "attention_bias": [True],
        "torch_dtype": ["float16"],
        "initializer_factor": [2.0],
        "head_dim": [12],
        "num_key_value_heads": [3],
    },
    WORDS: {
        "do_lower_case": [False, True],
        "strip_accents": [False, True],
        "add_prefix_space": [True],
        "tokenize_chinese_chars": [False],
        "add_bos_token": [True],
        "add_eos_token": [True],
        "legacy": [True],
        "additional_special_tokens": [["river"], ["<new>"]],
        "extra_special_tokens": [["dry"], {"x_token": "un"}],
        "mask_token": ["runs"],
        "bos_token": ["</s>"],
        "cls_token": ["bank"],
        "split_special_tokens": [False, True],
        "padding_side": ["left"],
        "truncation_side": ["left"],
        "model_max_length": [12],
        "clean_up_tokenization_spaces": [True],
        "image_token": ["river"],
        "chat_template": ["{{ messages }}"],
        "added_tokens_decoder": [
            {
                "9": {
                    "content": "river",
                    "lstrip": True,
                    "rstrip": True,
                    "normalized": False,
                    "single_word": True,
                    "special": False,
                }
            }
        ],
        "tokenizer_class": ["PreTrainedTokenizerFast", "BertTokenizer", "GPT2TokenizerFast", "SomeTokenizer"],
    },
    OLD: {"mask_token": ["runs"], "additional_special_tokens": [["river"]], "do_lower_case": [False]},
    TOKENIZER: {},
    "generation_config.json": {"temperature": [0.5], "max_length": [3]},
}
TEXT_FILES = WORDS, OLD, TOKENIZER, "added_tokens.json"
NEW_FILES: dict[str, Any] = {
    OLD: {"unk_token": "un", "mask_token": "runs"},
    "added_tokens.json": {"bank of": 9},
    WORDS: {"model_max_length": 512},
}


class Change(NamedTuple):
    """A file of a directory, the keys that lead to a value, and the value in its place: DROPPED for none, or for no
    file."""

    file: str
    path: tuple[str | int, ...]
    value: Any

    def __str__(self) -> str:
        said = "dropped" if self.value is DROPPED else f"= {json.dumps(self.value)[:60]}"
        return f"{self.file}: {'.'.join(map(str, self.path)) or 'file'} {said}"

    def apply(self, place: Path) -> None:
        """Changes the file in a directory."""
        file = place / self.file
        if self.value is DROPPED and not self.path:
            return file.unlink()
        content = json.loads(file.read_text()) if self.path else self.value
        inner = content
        for key in self.path[:-1]:
            inner = inner[key]
        if self.value is DROPPED:
            del inner[self.path[-1]]
        elif self.path:
            inner[self.path[-1]] = self.value
        file.unlink(missing_ok=True)  # it may be a link to another directory's
        file.write_text(json.dumps(content))
        return None


DROPPED = object()


class Reading(NamedTuple):
    """What a directory comes to: ids of the texts, and a row a token, or a text; or why there is none."""

    ids: list[list[int]]
    rows: NDArray[np.floating]
    error: str = ""

    def same(self, other: Reading) -> bool:
        """Whether both are the same, rows up to rounding."""
        if self.ids != other.ids or self.rows.shape != other.rows.shape:
            return False
        if not self.rows.size:
            return True
        return bool(np.abs(self.rows - other.rows).max() <= CLOSE * max(np.abs(other.rows).max(), 1e-9))


def failed(error: str) -> Reading:
    return Reading([], np.zeros((0, 0)), error)


# ---- changes


def changes(place: Path) -> Iterator[Change]:
    """One change of every key of every file, and of what lies within a tokenizer.json."""
    for file in sorted(file for file in place.rglob("*.json") if not file.name.endswith(".index.json")):
        name, content = str(file.relative_to(place)), json.loads(file.read_text())
        if name not in KEPT:
            yield Change(name, (), DROPPED)
        yield from of_keys(name, content)
        for key, values in ADDED.get(name, {}).items():
            if key not in content:
                yield from (Change(name, (key,), value) for value in values)
        if name == TOKENIZER:
            yield from of_flags(name, content)
    yield from (Change(name, (), content) for name, content in NEW_FILES.items() if not (place / name).exists())


def of_keys(name: str, content: Any, before: tuple[str | int, ...] = ()) -> Iterator[Change]:
    """A key dropped, null, and changed."""
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        path = (*before, key)
        if isinstance(value, dict) and name == "modules.json":
            yield from of_keys(name, value, path)
        yield Change(name, path, DROPPED)
        if value is not None:
            yield Change(name, path, None)
        yield from (Change(name, path, other) for other in others(str(key), value))


def others(key: str, value: Any) -> list[Any]:
    """Values in the place of one."""
    if type(value) is bool:
        return [not value]
    if type(value) is int:
        return [value + 1, 12 if value < POSITIONS else value * 9 // 10]
    if type(value) is float:
        return [value * 4 or 0.5]
    if isinstance(value, str):
        return ["river", value + "x"] if key.endswith("_token") else [value + "x"]
    if isinstance(value, list):
        return [[], [*value, *value[:1]]] if key not in ("vocab", "merges") else []
    return [True, False, 1] if value is None else []


def of_flags(name: str, content: Any, path: tuple[str | int, ...] = ()) -> Iterator[Change]:
    """Every flag within a tokenizer.json turned, its few words and its lists of steps cut, a token added or taken."""
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        at = (*path, key)
        if key in ("vocab", "merges") or len(at) > 4:
            continue
        if type(value) is bool:
            yield Change(name, at, not value)
        if isinstance(value, list | dict) and not (key == "added_tokens" and len(value) > 8):
            yield from of_flags(name, value, at)
        if key == "added_tokens" and not path:
            flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=False)
            yield Change(name, at, value[:-1])
            yield Change(name, at, [*value, {"id": ROWS - 1, "content": "iver", **flags}])
            yield Change(name, at, [*value, {"id": ROWS, "content": "unr", **flags}])


# ---- both readings


def theirs(place: Path, family: SavedFamily, speaks: bool, known: Reading | None = None) -> Reading:
    """What transformers makes of a directory, or sentence-transformers where its files are there. `known`: a reading of
    the same model, whose rows are these where the ids are."""
    import torch
    import transformers

    try:
        if family.embeds:
            from sentence_transformers import SentenceTransformer

            with drawn_weights_raise():
                model = SentenceTransformer(str(place), device="cpu")
            model.float()
            texts = [*TEXTS, LONG]  # alone, as padding on the left moves positions
            return Reading([], np.concatenate([model.encode([text], show_progress_bar=False) for text in texts]))
        transformers.AutoConfig.from_pretrained(str(place))
        words = transformers.AutoTokenizer.from_pretrained(str(place))
        ids = [list(map(int, words(text)["input_ids"])) for text in TEXTS]
        if known and ids == known.ids:
            return known
        kind = getattr(
            transformers, "T5EncoderModel" if family.stem == "T5" else "AutoModelForCausalLM" if speaks else "AutoModel"
        )
        with drawn_weights_raise():
            model = kind.from_pretrained(str(place), dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            found = [model(torch.tensor([row])) for row in ids if fits(row)]
        return Reading(
            ids, np.concatenate([(each.logits if speaks else each.last_hidden_state)[0].numpy() for each in found])
        )
    except Exception as error:
        return failed(f"{type(error).__name__}: {error}".replace("\n", " ")[:200])


@contextmanager
def drawn_weights_raise() -> Iterator[None]:
    """Within it, weights that a checkpoint lacks and a model needs raise ValueError, where transformers draws them."""
    from transformers import PreTrainedModel

    plain = PreTrainedModel._finalize_model_loading

    def strict(model: Any, config: Any, info: Any) -> Any:
        found = plain(model, config, info)
        lost = [name for name in map(str, (*info.missing_keys, *info.mismatched_keys)) if "pooler" not in name]
        if lost:
            raise ValueError(f"weights are drawn: {sorted(lost)[:2]}")
        return found

    PreTrainedModel._finalize_model_loading = staticmethod(strict)
    try:
        yield
    finally:
        PreTrainedModel._finalize_model_loading = staticmethod(plain)


def fits(row: list[int]) -> bool:
    return 0 < len(row) <= POSITIONS and max(row) < ROWS


def ours(place: Path, family: SavedFamily, known: Reading | None = None) -> tuple[Reading, bool]:
    """What opmatrix makes of it, and whether its rows are scores. A text that it refuses has no ids, as one that has
    ids beyond the table of words has none in a model."""
    try:
        checkpoint = open_model(place)
        words = checkpoint.tokenizer()
        if family.embeds:
            batch, model = words.encode([*TEXTS, LONG]), checkpoint.operator(pooled=True)
            return Reading([], dense(model, batch)), False
        with unpanicked():
            ids = [words.tokenizer.encode(text).ids for text in TEXTS]
        for text, row in zip(TEXTS, ids, strict=True):
            check_refusal(words, text, row)
        if known and ids == known.ids:
            return known, checkpoint.speaks
        batch = Batch([row for row in ids if fits(row)])
        return Reading(ids, dense(checkpoint.operator(), batch)), checkpoint.speaks
    except InputError as error:
        return failed(f"InputError: {error}"), False
    except Exception as error:
        return failed(f"{type(error).__name__}: {error}"[:200]), False


def check_refusal(words: Tokenizer, text: str, row: list[int]) -> None:
    """Raises as the tokenizer for a text that a model could read, and ValueError for one that none can and that is not
    refused."""
    if fits(row):
        words.encode(text)
    elif row and max(row) >= ROWS:
        try:
            words.encode(text)
        except InputError:
            return
        raise ValueError(f"{text!r} has ids beyond the table, and is not refused")


# ---- the table


class ChangedOutcome(NamedTuple):
    family: str
    change: Change
    outcome: str
    stays: bool
    why: str


def judge(family: str, change: Change, made: Reading, wanted: Reading, stays: bool) -> ChangedOutcome:
    """How two readings of a changed directory compare."""
    line = made.error.startswith("InputError: ") and "\n" not in made.error
    if made.error and not line:
        kind = "wrong"
    elif wanted.error:
        kind = "refused by both" if line else "opened here alone"
    elif line:
        kind = "refused"
    else:
        kind = "equal" if made.same(wanted) else "wrong"
    return ChangedOutcome(family, change, kind, stays, made.error or wanted.error)


def outcomes(name: str, each: int = 1, only: list[Change] | None = None) -> Iterator[ChangedOutcome]:
    """Every `each`-th change of a family, or those that are given. Raises InputError where the unchanged directory is
    not read alike."""
    family = SAVED[name]
    with TemporaryDirectory() as room:
        whole = Path(room) / "whole"
        save(family, whole)
        first, speaks = ours(whole, family)
        before = theirs(whole, family, speaks)
        if before.error or first.error or not first.same(before):
            raise InputError(f"{name}: unchanged files are read otherwise: {first.error or before.error}")
        for number, change in enumerate(only if only is not None else [*changes(whole)][::each]):
            place = Path(room) / str(number)
            shutil.copytree(whole, place, copy_function=link)
            change.apply(place)
            of_words = change.file in TEXT_FILES  # the model is as it was
            made, changed_speaks = ours(place, family, first if of_words else None)
            wanted = theirs(place, family, speaks if made.error else changed_speaks, before if of_words else None)
            yield judge(name, change, made, wanted, not wanted.error and wanted.same(before))
            shutil.rmtree(place)


def link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def silence() -> None:
    """Neither warnings nor bars of others."""
    import transformers

    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity(logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    logging.getLogger("sentence_transformers").setLevel(logging.CRITICAL)


KINDS = "equal", "refused", "wrong", "refused by both", "opened here alone"


def tallied(found: list[ChangedOutcome]) -> str:
    """A row a family."""
    rows = []
    for name in [*dict.fromkeys(each.family for each in found), "in all"]:
        of = [each for each in found if name in (each.family, "in all")]
        counts = Counter(each.outcome for each in of)
        unchanged = [each for each in of if each.stays]
        lost = sum(each.outcome == "refused" for each in unchanged)
        rows.append([name, len(of), *(counts[kind] for kind in KINDS), len(unchanged), lost])
    heads = ["family", "changes", *KINDS, "no effect", "of these refused"]
    return table([[str(cell) for cell in row] for row in rows], heads)


def measure_changed() -> int:
    """Change, drop or null one key of one file of small random models of every family, or leave a file out: token ids
    and scores beside those of transformers, or embeddings beside those of sentence-transformers.

        python benchmarks/spoilt_files.py changed [--families "bert,llama; tied; older files"] [--each 1]
                [--csv OUT]

    A change is `equal` where both give the same, `refused` where opmatrix says in one line why not, `wrong` where
    it gives other numbers, or an error that is no line. What files say of words alone leaves the model as it was,
    so where ids stay its rows are not computed again. Directories that transformers cannot open, or for which it
    draws weights, are counted apart. Bars: of changes after which transformers' ids and scores stay as they were,
    none is refused; of all, at most 15 %; none is wrong."""
    given = Parser(measure_changed)
    given.add_argument("--families", default=",".join(SAVED).replace(", ", "; "), help="some of them")
    given.add_argument("--each", type=count, default=1, help="one of so many changes")
    options = given.parse_args()
    chosen = [name.replace("; ", ", ") for name in listed(options.families)]
    named("families", chosen, SAVED)
    if lost := [name for name in ("torch", "transformers", "sentence_transformers") if not find_spec(name)]:
        raise InputError(f"{', '.join(lost)} cannot be imported: pip install '.[peers]'")
    takes(700 / options.each * len(chosen) / len(SAVED))
    silence()
    found = []
    for name in chosen:
        for each in outcomes(name, options.each):
            found.append(each)
            if each.outcome == "wrong" or (each.stays and each.outcome == "refused"):
                print(f"{each.outcome}: {name}: {each.change}: {each.why}", flush=True)
        command.say(f"{name}: {len(found)} changes")
    tabled(
        options.csv,
        [
            ["family", "change", "outcome", "stays", "why"],
            *([each.family, str(each.change), each.outcome, each.stays, each.why] for each in found),
        ],
    )
    print(tallied(found))
    counted = [each for each in found if each.outcome in KINDS[:3]]
    refused, wrong = ([each for each in counted if each.outcome == kind] for kind in ("refused", "wrong"))
    concluded(
        options,
        [
            Figure("refused, of changes without effect", sum(each.stays for each in refused), most=0),
            Figure("refused, of all changes", len(refused) / max(1, len(counted)), most=MOST_REFUSED),
            Figure("wrong", len(wrong), most=0),
        ],
    )
    return int(bool(wrong) or any(each.stays for each in refused))


if __name__ == "__main__":
    command.run_parts(measure_hostile, measure_changed)
