"""Pretrained weights: a directory with config.json and safetensors, in one file or in shards, or a GGUF file. Weights
are read when they are needed."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from os.path import isdir, isfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from formats.core.errors import InputError
from formats.disk.files import lying, read_json, read_text
from opmatrix.algebra.data import Data
from opmatrix.files.adapter import Adapter, Additions
from opmatrix.files.directory.answered import (
    NO,
    YES,
    AnswerTokens,
    declares_answers,
    read_answer,
    read_answered_texts,
    read_answering,
    usual_answer,
)
from opmatrix.files.directory.chat_files import read_chat, read_gguf_chat
from opmatrix.files.directory.declared import embeds, read_pooling
from opmatrix.files.directory.dense_layers import dense_layer
from opmatrix.files.directory.in_memory import HeldModel, hold_model, is_module
from opmatrix.files.directory.model_files import CONFIG, INDEX, TOKENIZER, WEIGHTS
from opmatrix.files.directory.scored import read_file_scoring, read_scoring, read_texts
from opmatrix.files.directory.sparse_files import declares_sparse, read_sparse
from opmatrix.files.filed_data import BlockSource, FiledData
from opmatrix.files.methods.plain_weights import QUANT_METHOD, plain_weights
from opmatrix.files.tensors import ExpertTensors, Tensor, find_experts, format_shape, header, numberless
from opmatrix.inference.chat.chat_templates import ChatTemplates
from opmatrix.inference.pooling import LAST, Pooling
from opmatrix.inference.scores.scoring import Scoring
from opmatrix.inference.text import ReadableIds, Tokenizer

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedTokenizerBase

    from opmatrix.algebra.term import Operator
    from opmatrix.models.config import TensorNames

PICKLED = "pytorch_model.bin"
QUANTISATION = "quantization_config"
CLASSIFIES = "ForSequenceClassification"  # the ending of the architectures of models that score texts
SPEAKS = "ForCausalLM", "LMHeadModel"  # endings of the architectures of language models
DECODES = "ForConditionalGeneration"  # the ending of the architectures of encoders with a decoder
# endings of the architectures of models that answer by a head
ANSWERS = tuple(
    f"For{task}"
    for task in (
        "SequenceClassification",
        "TokenClassification",
        "QuestionAnswering",
        "MultipleChoice",
        "NextSentencePrediction",
    )
)
LATE_INPUT = "token_embeddings"  # the value of modules of sentence-transformers that rows of tokens are
HEADED = "a head that an embedding program would ignore: "
ALONE = "save the model without it, by transformers' AutoModel.from_pretrained(DIR).save_pretrained(NEW), or "
ROWS = "take a row a token: --output rows"


class Config(dict[str, object]):
    """The entries of config.json, or of the file that has them in its place. Asking for a missing key raises InputError
    that names the key. `left_out`: keys that the file lacks, with the values that its family reads them as."""

    def __init__(self, path: Path, said: dict[str, object] | None = None):
        super().__init__(json_object(path, infinity) if said is None else said)
        self.path = path
        self.left_out: dict[str, object] = {}

    def fill(self) -> None:
        """Add the keys that the file lacks, with the default values of transformers for its family."""
        from opmatrix.files.directory.left_out import LEFT_OUT
        from opmatrix.models import older_names

        usual, older = LEFT_OUT.get(str(self.get("model_type")), {}), older_names(self)
        self.left_out = {key: usual[key] for key in usual if key not in self and older.get(key, key) not in self}
        self.update(self.left_out)

    def __missing__(self, key: str) -> Any:
        raise InputError(f"{self.path}: {key!r} is missing: take the config.json that belongs to the weights")

    @contextmanager
    def named(self) -> Iterator[None]:
        """Make errors of a family name the file: a family knows the config but not its file."""
        try:
            yield
        except InputError as error:
            key = re.match(r"config: (\w+) is ", str(error))
            usual = f"{key[1]}, left out, " if key and key[1] in self.left_out else ""
            text = re.sub(rf"^config: {key[1]} ", f"config: {usual}", str(error)) if key and usual else str(error)
            raise InputError(re.sub("^config:", lambda _: f"{self.path}:", text)) from error


@dataclass(frozen=True)
class Checkpoint:
    """A model's directory or GGUF file, opened: its config is read and its tensors are listed, but no tensor is loaded
    yet. `keys`: the keys of a GGUF file, which hold its tokenizer. `adapter`: is added to its weights. `declared`: the
    pooling in place of the one that its files lead to. `pairs`: a language model scores pairs, though no file says
    so; `template`: the text that it reads of a pair, in place of that of its files. `held`: a model in memory, whose
    tensors these are."""

    name: str
    directory: Path
    config: Config
    tensors: dict[str, Tensor]
    keys: dict[str, object] | None = None
    adapter: Adapter | None = None
    declared: Pooling | None = None
    pairs: bool = False
    template: str | None = None
    held: HeldModel | None = None

    @classmethod
    def open(cls, directory: str | Path, name: str | None = None, held: HeldModel | None = None) -> "Checkpoint":
        """Open a checkpoint; the tensors of a model in memory are `held`. Raises InputError if the directory, its
        config.json or its weights are missing or damaged, if no model family is known by the config's `model_type`, or
        if the family does not allow an entry of the config."""
        from opmatrix.models import FAMILIES, check, named_family
        from opmatrix.models.signs import tell_family

        directory = Path(directory)
        if isfile(directory):
            return cls.of_gguf(directory, name)
        if not (directory / CONFIG).exists() and len(files := sorted(directory.glob("*.gguf"))) == 1:
            return cls.of_gguf(files[0], name)
        if not isdir(directory):  # also False for a name that no directory can have
            raise InputError(
                f"{directory}: no such directory: config.json and {WEIGHTS} were looked for, and "
                f"{lying(directory)}: give a directory that holds them"
            )
        if not (directory / CONFIG).exists():
            raise InputError(
                f"{directory / 'config.json'}: No such file: a model needs it, and {lying(directory)}: "
                "give a directory that holds it"
            )
        config = Config(directory / CONFIG)
        quantised = take_quantisation(config) if held is None else None
        list_tensors = partial(listing, directory) if held is None else held.list_tensors
        with config.named():
            if family := tell_family(config, FAMILIES, list_tensors):
                config["model_type"] = family
            named_family(config)
            config.fill()
            check(config)
        tensors = list_tensors()
        if quantised is not None:
            tensors = plain_weights(quantised, config.path, tensors)
        return cls(name or directory.resolve().name, directory, config, tensors, held=held)

    @classmethod
    def of_gguf(cls, file: Path, name: str | None = None) -> "Checkpoint":
        """Open a GGUF file. Raises as `open`."""
        from opmatrix.files import gguf
        from opmatrix.models import check, layout, normalise_config

        gguf_header = gguf.read_whole(file)
        config = Config(file, gguf.config(gguf_header, file))
        with config.named():
            check(config)
            names, sizes = layout(config), normalise_config(config)
        heads = sizes["num_attention_heads"]
        pairs = {"attn_q": heads, "attn_k": sizes.get("num_key_value_heads") or heads}
        return cls(
            name or file.stem,
            file,
            config,
            gguf.rename_tensors(gguf_header, names.gguf, names.permuted, pairs),
            gguf_header.said,
            declared=gguf.read_pooling(gguf_header, file),
        )

    def look_up(self, name: str) -> Tensor | None:
        """Return the tensor of that name, with or without the family's prefix, or the tensor that it is a copy of; None
        if there is neither."""
        copy = self.layout.copies.get(name)
        if copy and (stored := self.look_up(copy)):
            return stored
        for prefix in ("", self.prefix):
            for new, old in (("", ""), *self.layout.spellings):
                spelt = prefix + (name.removesuffix(new) + old if name.endswith(new) else name)
                if spelt in self.tensors:
                    return self.tensors[spelt]
        return None

    def find(self, name: str) -> Tensor:
        """Return the tensor of that name. Raises InputError if there is none."""
        if tensor := self.look_up(name):
            return tensor
        raise InputError(
            f"{self.directory}: tensor {name!r} is missing from the weights: check {self.config.path}, or "
            "get the weights again"
        )

    def find_whole(self, name: str, *shape: int) -> Tensor | ExpertTensors:
        """Find the tensor of that name, or the matrices of all experts of a layer. Raises InputError if one is missing,
        if its shape is not the one that the config leads to, or if experts have several number types."""
        for ending, stack in self.layout.stacks.items():
            if not name.endswith(ending):
                continue
            stacked = find_experts(self.look_up, name.removesuffix(ending), stack, shape, self.check_shape)
            return self.find(stacked) if isinstance(stacked, str) else stacked
        tensor = self.find(name)
        if shape:
            self.check_shape(tensor, shape)
        return tensor

    def check_shape(self, tensor: Tensor, shape: tuple[int, ...]) -> None:
        """Raise InputError for a tensor of another shape than the config leads to."""
        if tensor.shape == shape:
            return
        differ = {size for size, actual in zip(shape, tensor.shape, strict=False) if size != actual} or set(shape)
        keys = [
            key + ", left out" * (key in self.config.left_out)
            for key, size in self.config.items()
            if type(size) is int and size in differ
        ] or ["its sizes"]
        raise InputError(
            f"{tensor.file}: tensor {tensor.name!r} is {format_shape(tensor.shape)}, but "
            f"{self.config.path} leads to {format_shape(shape)}: check {', '.join(keys)}"
        )

    def at(self, name: str, *shape: int) -> Data:
        """Load the tensor in float32, as an attribute for terms. Raises InputError as `find_whole`, and for an entry
        that is not finite."""
        return load_data(self.find_whole(name, *shape), name)

    @cached_property
    def layout(self) -> "TensorNames":
        """The names of tensors in the files of its family."""
        from opmatrix.models import layout

        return layout(self.config)

    @cached_property
    def said(self) -> dict[str, Any]:
        """The entries of its config, by the names that all families share."""
        from opmatrix.models import normalise_config

        with self.config.named():
            return normalise_config(self.config)

    @property
    def positions(self) -> int:
        """The number of tokens that a text may have."""
        return self.layout.positions(self.said)

    @property
    def speaks(self) -> bool:
        """True for a language model, whose rows are scores of the vocabulary: its architecture says so, and no file
        declares how its rows become embeddings."""
        return self.generates and self.answer is None and not embeds(self.directory)

    @property
    def generates(self) -> bool:
        """True for the architecture of a language model."""
        return bool(self.layout.table) and self.architecture.endswith(SPEAKS)

    @property
    def decodes(self) -> bool:
        """True for an encoder with a decoder behind it that its family builds."""
        return self.layout.decoder is not None and self.architecture.endswith(DECODES)

    @cached_property
    def answer(self) -> AnswerTokens | None:
        """The tokens by which a language model, or a decoder behind its encoder, scores pairs; None for other models.
        Raises InputError that names the file and the entry."""
        if not (self.generates or self.decodes) or self.keys is not None:
            return None
        if self.generates and declares_answers(self.directory):
            return read_answer(self.directory, self.said["vocab_size"])
        if not self.pairs or embeds(self.directory):
            return None
        tokenizer = Tokenizer.from_text(self.tokenizer_text or "", str(self.vocabulary)).tokenizer
        words = self.layout.decoder.words if self.layout.decoder else (YES, NO)
        return usual_answer({word: tokenizer.token_to_id(word) for word in words}, self.vocabulary)

    @property
    def architecture(self) -> str:
        """The class that the config names; empty if it names none."""
        match self.config.get("architectures"):
            case [str(name), *_]:
                return name
        return ""

    @property
    def classifies(self) -> bool:
        """True for a model that scores texts by a head that its family has: its architecture says so, and no file
        declares how rows become embeddings."""
        headed = self.layout.classifier is not None and self.architecture.endswith(CLASSIFIES)
        return headed and not embeds(self.directory)

    @cached_property
    def scoring(self) -> Scoring | None:
        """The labels that it scores texts by, and how; None for a model without such a head. Raises InputError that
        names the file and the entry."""
        if self.answer is not None:
            return read_answering(self.config, self.directory, self.template, self.layout.decoder)
        if not self.classifies:
            return None
        read = read_scoring if self.keys is None else read_file_scoring
        return read(self.config, self.directory)

    @cached_property
    def head(self) -> str:
        """The head that computes its answers from rows: the tensor on top, or the architecture. Empty if the rows are
        its result: it is a language model, files declare how rows become embeddings, or the part on top was for
        training alone."""
        if self.speaks or embeds(self.directory):
            return ""
        from opmatrix.models import tensors

        named = f" ({self.architecture})" if self.architecture else ""
        known = {*map(self.part, tensors(self.config)), *self.layout.trained, self.layout.head.split(".")[0]}
        for name, tensor in sorted(self.tensors.items()):
            if self.part(name) not in known and not name.endswith(self.layout.buffers):
                return f"{tensor.file}: tensor {name!r}{named}"
        return f"{self.config.path}: {self.architecture}" if self.architecture.endswith(ANSWERS) else ""

    @cached_property
    def prefix(self) -> str:
        """The prefix of tensor names in a model with a head: the word of its family, or the one that this file puts
        before the table of tokens (as transformers does for a LLaMA that answers questions)."""
        usual, table = self.layout.prefix, self.layout.table
        if not table or {table, usual + table} & self.tensors.keys():
            return usual
        return next((name.removesuffix(table) for name in sorted(self.tensors) if name.endswith(f".{table}")), usual)

    def part(self, name: str) -> str:
        """Return the first word of a tensor's name, behind the family's prefix."""
        return name.removeprefix(self.prefix).split(".")[0]

    def headless(self) -> str:
        """Return the error text for a model with a head, with the remedy. It recommends AutoModel only if the prefix is
        the family's: with another one transformers finds no weights and draws random ones."""
        return HEADED + ALONE * (self.prefix == self.layout.prefix) + ROWS

    def operator(self, pooled: bool = False) -> "Operator":
        """Build the whole model as an operator, from tokens to features, or to scores of the vocabulary if it `speaks`;
        with its pooling if `pooled`, or with the head that scores texts if it has one. Raises InputError as `at` does,
        if the config's sizes do not fit one another, if the weights hold a tensor of the model's own parts that it does
        not use, and for the embedding of a model that answers by another head."""
        from opmatrix.algebra.shapes import ShapeError
        from opmatrix.models import answer, build, classify, fill_masks, head

        used, loaded = set[Tensor](), WeakValueDictionary[Tensor, Data]()
        beside = self.adapter and Additions(self.adapter, self.prefix)

        def at(name: str, *shape: int, called: str = "") -> Data:
            """Find a tensor of this shape and note its use; return its array, with the adapter's addition if there is
            one."""
            tensor = self.find_whole(name, *shape)
            if isinstance(tensor, ExpertTensors):
                used.update(tensor.used)
                data = load_data(tensor, name)
            else:
                used.add(tensor)
                data = loaded[tensor] if tensor in loaded else load_data(tensor, name)
                loaded[tensor] = data  # a tied table is not read again while it is in use
            return beside.held(called or name, data) if beside else data

        with self.config.named():
            try:
                if pooled and self.head and not self.scoring:
                    raise InputError(f"{self.head}: {self.headless()}")
                model = build(self.config, at)
                if pooled and self.classifies and self.scoring:
                    model = model @ classify(self.config, at, len(self.scoring.labels))
                elif pooled and self.answer is not None:
                    model = model @ answer(self.config, at, self.holds_head(), *self.answer)
                elif pooled and self.pooling().sparse:
                    model = self.pool(model @ fill_masks(self.config, at, self.holds_masked_head()))
                elif pooled:
                    model = self.pool(model)
                # adapters name the head by its own name, tied or not
                if self.speaks:
                    model = model @ head(self.config, partial(at, called=self.layout.head), self.holds_head())
                if beside:
                    model = beside.put(model)
            except ShapeError as error:
                raise InputError(f"config: its sizes do not fit: {error}") from error
        self.complete(used)
        return model

    def pool(self, model: "Operator") -> "Operator":
        """Return a model with its pooling, and the layers that come behind pooled rows. Where files leave the rows of a
        prompt out, rows are pooled when texts are read, and the model stays. Raises InputError for layers behind
        those."""
        pooling = self.pooling()
        if pooling.late:
            return model @ pooling.operator(
                *(dense_layer(self.directory / name, LATE_INPUT) for name in pooling.layers)
            )
        if pooling.include_prompt:
            return model @ pooling.operator(*(dense_layer(self.directory / name) for name in pooling.layers))
        if pooling.layers:
            raise InputError(
                f"{self.directory / pooling.layers[0]}: a layer behind rows that leave a prompt out (include_prompt is "
                "false) is not supported: take a row a token: --output rows"
            )
        return model

    def holds_head(self) -> bool:
        """True if the files hold a matrix that scores the vocabulary, other than the table of tokens. Such a matrix
        goes before a config that ties both, as it does in transformers from version 5 on. Raises InputError if they
        hold none and the config does not tie."""
        scores = self.layout.answering
        if self.look_up(scores) is None and not self.said["tie_word_embeddings"]:
            raise InputError(
                f"{self.config.path}: tie_word_embeddings is false or left out, but {self.directory} "
                f"holds no tensor {scores!r} that scores the vocabulary: get the weights again, "
                "or set it to true if the table of tokens does"
            )
        return self.differs_from_table(scores, self.layout.table)

    def holds_masked_head(self) -> bool:
        """True if the files hold a matrix that scores masked tokens, other than the table of tokens."""
        masked = self.layout.masked
        return masked is not None and self.differs_from_table(masked.scores, masked.table)

    def differs_from_table(self, head: str, table_name: str) -> bool:
        """True if the files hold a matrix of that name, and the config does not tie it to the table of tokens, or it
        differs from that."""
        stored, table = self.look_up(head), self.look_up(table_name)
        if stored is None or table is None or not self.said["tie_word_embeddings"]:
            return stored is not None
        return stored.shape != table.shape or not np.array_equal(stored.read(), table.read())

    def complete(self, found: set[Tensor]) -> None:
        """Raise InputError for an unused tensor beside a used one: a layer that the config leaves out, or a part that
        the family does not know. Heads are parts of their own, and are left alone."""
        used = {name for name, tensor in self.tensors.items() if tensor in found}
        parts, kinds = {*map(self.part, used)}, {numberless(name) for name in used}
        if self.layout.masked is not None:  # its part holds other heads, too, and a copy of the table of tokens
            parts.discard(self.part(self.layout.masked.scores))
        for name, tensor in self.tensors.items():
            if name in used or self.part(name) not in parts or name.endswith(self.layout.buffers):
                continue
            if numberless(name) in kinds:
                raise InputError(
                    f"{self.directory}: the weights hold {name!r}, which {self.config.path} leaves out: "
                    f"check its number of layers{' and of experts' * bool(self.layout.stacks)}"
                )
            raise InputError(
                f"{tensor.file}: tensor {name!r} is no part of a plain {self.config['model_type']}, which "
                "would be computed without it: convert the model, or take the tensor out"
            )

    @property
    def vocabulary(self) -> Path:
        """The file that holds the tokenizer."""
        return self.directory / TOKENIZER if self.keys is None else self.directory

    @cached_property
    def tokenizer_text(self) -> str | None:
        """The text of a tokenizer.json that combines all files about texts, or the keys of a GGUF file; None without a
        tokenizer."""
        if self.keys is None:
            if not self.vocabulary.exists():
                return None
            from opmatrix.files.directory.tokenizer_files import effective_text

            return effective_text(read_text(self.vocabulary), self.directory, self.config)
        from opmatrix.files.directory.gguf_words import tokenizer

        return tokenizer(self.keys, self.said["vocab_size"], self.vocabulary)

    def tokenizer(self) -> Tokenizer:
        """Return its tokenizer, limited to the positions of the model; `pooling` gives the length that texts are
        truncated to."""
        if (text := self.tokenizer_text) is None and self.held is not None:
            raise InputError(
                f"{self.name}: a model of transformers in memory brings no tokenizer: give "
                "om.from_torch(model, tokenizer), or tokens, workload=om.Batch([..])"
            )
        # the file is absent: reading it raises the right error
        if text is None:
            return Tokenizer.from_file(self.vocabulary)
        return Tokenizer.from_text(
            text,
            str(self.vocabulary),
            self.positions,
            self.pooling(),
            readable=ReadableIds(self.said["vocab_size"], self.unplaced),
        )

    @property
    def chat(self) -> ChatTemplates | None:
        """The chat templates of its files; None without any. Raises InputError for one that is no text."""
        return read_chat(self.directory) if self.keys is None else read_gguf_chat(self.keys, self.directory)

    @property
    def unplaced(self) -> int | None:
        """The id of the token that takes no position, if there is one."""
        return self.said[self.layout.unplaced] if self.layout.unplaced else None

    def pooling(self) -> Pooling:
        """Return the pooling of the rows of a text into one: the row of its last token in a language model, that of the
        first one if a head scores it, else see opmatrix.files.directory.declared."""
        if self.declared is not None:
            return self.declared
        if self.classifies:
            return read_texts(self.directory, self.positions)
        if self.answer is not None:
            return read_answered_texts(self.directory, self.positions)
        if declares_sparse(self.directory):
            return read_sparse(self.directory, self.positions)
        return LAST if self.speaks else read_pooling(self.directory, self.positions)


def load_data(found: Tensor | ExpertTensors, name: str) -> Data:
    """Load the numbers of a tensor, or of all experts, as an attribute for terms. Blocks that a format holds are looked
    at, and read from their file when a program stores them."""
    if source := BlockSource.of(found):
        source.read()
        return FiledData(source, name)
    array, blocks = found.read() if isinstance(found, ExpertTensors) else found.read_both()
    return Data(array, name, blocks)


def open_model(model: "str | Path | Module | Checkpoint", adapter: str | Path | None = None) -> Checkpoint:
    """Open a model by its name (`minilm`, fetched at first use), by its directory (write ./minilm for one called so),
    by its name on the hub (org/name@revision), or from memory (see `om.from_torch`), with the LoRA adapter of another
    directory, if any. One that is open already is returned."""
    checkpoint = model if isinstance(model, Checkpoint) else open_plain(model)
    return checkpoint if adapter is None else replace(checkpoint, adapter=Adapter.read(adapter))


def open_held(model: "Module", tokenizer: "PreTrainedTokenizerBase | None" = None) -> Checkpoint:
    """Open a model in memory (opmatrix/exports/read_back.py has the call for users). Raises InputError for a model that
    `hold_model` refuses."""
    held = hold_model(model, tokenizer)
    return Checkpoint.open(held.directory, held=held)


def open_plain(model: "str | Path | Module") -> Checkpoint:
    """Open the model of a checkpoint, without an adapter."""
    from opmatrix.files.fetch import MODELS, fetch
    from opmatrix.files.hub import download, is_hub_name

    if is_module(model):
        return open_held(model)
    if not isinstance(model, str | Path):
        raise TypeError(f"a model is a name or a directory, not {model!r:.60}")
    if model in MODELS:
        return Checkpoint.open(fetch(MODELS[str(model)]), str(model))
    if not isdir(model) and not (isfile(model) and str(model).endswith(".gguf")):
        if is_hub_name(str(model)) and not isfile(model):
            return Checkpoint.open(download(str(model)), str(model))
        raise InputError(
            f"{model}: neither a model that opmatrix fetches ({', '.join(MODELS)}) nor a directory with "
            f"config.json and {WEIGHTS} nor a .gguf file; save a model of the hub by transformers into "
            f"a directory: AutoModel.from_pretrained(NAME).save_pretrained(DIR), and so AutoTokenizer"
        )
    return Checkpoint.open(model)


def take_quantisation(config: Config) -> dict[str, object] | None:
    """Return the settings of a quantisation method, and take them out of the config; None where it has no method."""
    settings = config.get(QUANTISATION)
    if not (isinstance(settings, dict) and QUANT_METHOD in settings):
        return None
    del config[QUANTISATION]
    return settings


def listing(directory: Path) -> dict[str, Tensor]:
    """List the tensors of the directory by name, from one file or from the shards that an index names."""
    if (whole := directory / WEIGHTS).exists():
        return header(whole)
    if not (index := directory / INDEX).exists():
        if (pickled := directory / PICKLED).exists():
            raise InputError(
                f"{pickled}: reading it would run code from it: convert it to {WEIGHTS}, by transformers' "
                f"AutoModel.from_pretrained({str(directory)!r}).save_pretrained({str(directory)!r})"
            )
        raise InputError(f"{directory}: neither {WEIGHTS} nor {INDEX}: save the model as safetensors into it")
    shard_of = json_object(index).get("weight_map")
    if not (isinstance(shard_of, dict) and all(isinstance(s, str) and s == Path(s).name for s in shard_of.values())):
        raise InputError(f"{index}: weight_map must name a file of this directory for every tensor")
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(shard_of.values())):
        try:
            tensors |= header(directory / shard)
        except InputError as error:
            raise InputError(f"{error}; {index} names this shard") from error
    if lost := [name for name in shard_of if name not in tensors or tensors[name].file.name != shard_of[name]]:
        raise InputError(f"{directory / shard_of[lost[0]]}: tensor {lost[0]!r} is missing, {index} puts it there")
    return tensors


def infinity(word: str) -> str:
    """Return the text of an infinity, which JSON can hold: configs of Mamba 2 write it for steps that are not clipped.
    Raises ValueError for NaN."""
    if not word.endswith("Infinity"):
        raise ValueError(f"{word} is not a finite number")
    return word


def json_object(path: Path, constant: Callable[[str], str] | None = None) -> dict[str, object]:
    """Read a file that holds one JSON object; `constant` reads its infinities. Raises InputError that names the
    file."""
    try:
        content = read_json(path, constant=constant)
    except InputError as error:
        raise InputError(f"{error}: a model needs it") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: {type(content).__name__}, not a JSON object: mend it")
    return content
