"""A program read as the weights of a plain class of transformers. Each step of a program is a step of the class, whose
norms have a gain of one and a shift of zero where laws moved these into weights behind them. So the class with the
program's own constants computes the same; whoever writes it compares both on rows of tokens."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import Floats
from formats.core.errors import InputError
from formats.storage.format import Format
from opmatrix.exports.checkpoints.stored_numbers import (
    StoredNumbers,
    filed_numbers,
    pack_numbers,
    plain_integers,
    turn_numbers,
)
from opmatrix.models.config import Settings
from opmatrix.models.encoders.bert import LAYER_NAMES, SHORT
from opmatrix.models.encoders.nomic import NOMIC_PARTS
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.program import Program, Step

HALF_NUMBERS = {"bf16": "BF16", "float16": "F16"}  # number types of two bytes, by their names in files
CLASSES = {
    "bert": "BertModel",
    "roberta": "RobertaModel",
    "xlm-roberta": "XLMRobertaModel",
    "camembert": "CamembertModel",
    "distilbert": "DistilBertModel",
    "nomic_bert": "NomicBertModel",
    "llama": "LlamaModel",
    "mistral": "MistralModel",
    "qwen2": "Qwen2Model",
    "qwen3": "Qwen3Model",
}  # families, and their classes without a head
BIASED_PARTS = {"llama": "", "mistral": "", "qwen2": "qkv", "qwen3": ""}  # LLaMA's kin, and its products that add a row
TABLE_NAMES = {
    "tokens": "word",
    "positions": "position",
    "kinds": "token_type",
}  # fields of a batch, and names of tables
PICKED = "first", "last"  # poolings that choose a row
PACKED = "qkv"  # the part of a layer whose outputs are queries, keys and values behind one another
PACKING_FAMILIES = frozenset({"nomic_bert"})
TIED = 1e-6  # relative difference of a head from the table of tokens with gains


BLOCKS, INTEGERS = "blocks", "integers"  # kinds of stored numbers that a target may keep


class LowRankCorrection(NamedTuple):
    """Two thin matrices whose product is added to a weight: x @ Wᵀ + (x @ firstᵀ) @ secondᵀ, first (r, n), second (p,
    r)."""

    first: Floats
    second: Floats

    def of_outputs(self, low: int, high: int | None) -> "LowRankCorrection":
        """Return the correction of some outputs."""
        return self._replace(second=np.ascontiguousarray(self.second[low:high]))

    def scaled(self, factor: float) -> "LowRankCorrection":
        """Return the correction times a factor."""
        return self._replace(second=(self.second * factor).astype(np.float32))


class PlainProduct(NamedTuple):
    """A product of a program, or some of its columns: the value that it multiplies, its weight as files have it (p, n),
    its bias (p,) if it has one, and the low-rank product that is added to it, if one is."""

    x: str
    weight: StoredNumbers
    bias: Floats | None
    correction: LowRankCorrection | None = None

    def scaled(self, factor: float) -> "PlainProduct":
        """Return the product times a factor."""
        bias = None if self.bias is None else (self.bias * factor).astype(np.float32)
        correction = self.correction and self.correction.scaled(factor)
        return PlainProduct(self.x, self.weight.scaled(factor), bias, correction)


class LayerSizes(NamedTuple):
    """The sizes of a layer: hidden units, heads, heads of keys, columns of a head."""

    units: int
    heads: int
    key_heads: int
    columns: int


class AttentionSteps(NamedTuple):
    """A step of attention, its products by part, its sizes without units, and the norms of heads of queries and keys.
    `factor`: the scores' own factor, where a norm of queries stands between it and their product."""

    step: Step
    products: dict[str, PlainProduct]
    sizes: LayerSizes
    norms: dict[str, Step]
    factor: float


@dataclass
class PlainModel:
    """The tensors of a model by their names in files, and the sizes of its layers. `head`: it scores a vocabulary;
    `tied`: by the table of tokens. `corrections`: low-rank products that are added to weights, by their modules."""

    tensors: dict[str, StoredNumbers] = field(default_factory=dict)
    layers: list[LayerSizes] = field(default_factory=list)
    head: bool = False
    tied: bool = False
    corrections: dict[str, LowRankCorrection] = field(default_factory=dict)

    def note(self, name: str, product: PlainProduct, biased: bool) -> None:
        """Note a product, with a bias of zeros where its class adds a row (`biased`) and it has none. Raises InputError
        for a bias that its class has not."""
        self.tensors[f"{name}.weight"] = product.weight
        if product.correction is not None:
            self.corrections[name] = product.correction
        if biased:
            bias = np.zeros(len(product.weight.numbers), np.float32) if product.bias is None else product.bias
            self.tensors[f"{name}.bias"] = StoredNumbers(bias)
        elif product.bias is not None:
            raise no_place(f"{name}.bias", "is a row that laws left behind a product")


@contextmanager
def naming(option: str) -> Iterator[None]:
    """Begin errors with the option that asked for a file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{option}: {error}") from error


def read_plain(program: Program, family: str, tied: bool, kept: Collection[str] = ()) -> PlainModel:
    """Read a program of a family as its plain class. `tied`: the head is the table of tokens, where gains of the last
    norm make them equal; `kept`: kinds of stored numbers that are not refused. Raises InputError, which names the step,
    the tensor or the layer that has no place there."""
    if family not in CLASSES:
        raise InputError(
            f"a program of {family}: only {', '.join(CLASSES)} are written as their class: give --onnx or --torch"
        )
    reader = ProgramReader(program, frozenset(kept))
    if family in BIASED_PARTS:
        return GatedReader(reader, BIASED_PARTS[family], family == "qwen3").read(tied)
    if family in PACKING_FAMILIES:
        return NormedBehindReader(reader, NOMIC_PARTS, "emb_ln", False).read()
    return NormedBehindReader(reader, SHORT if family == "distilbert" else LAYER_NAMES).read()


def is_tied(config: Settings) -> bool:
    """True if the head of a configuration's class is the table of tokens; only LLaMA's is not by default."""
    return bool(config.get("tie_word_embeddings", config.get("model_type") != "llama"))


def describe_sizes(model: PlainModel, sizes: LayerSizes) -> str:
    """Return the sizes of a model in words."""
    return f"{len(model.layers)} layers of {sizes.heads} heads of {sizes.columns} and {sizes.units} hidden units"


def layer_part(step: Step) -> str:
    """Return the part in a layer that the kernel of a step declares."""
    return KERNELS[step.kernel].part


def no_place(where: str, why: str) -> InputError:
    """Return the error for what a plain class cannot hold."""
    return InputError(f"{where} {why}, for which the plain class has no place: give --onnx or --torch")


@dataclass(frozen=True)
class ProgramReader:
    """The steps of a program by their results, and who uses them. `kept`: kinds of stored numbers that are read."""

    program: Program
    kept: frozenset[str] = frozenset()

    @cached_property
    def steps(self) -> dict[str, Step]:
        """Steps by the name of their result."""
        return {step.output: step for step in self.program.steps}

    @cached_property
    def digests(self) -> dict[str, bytes]:
        """Digests of the numbers of constants that were asked for, by name."""
        return {}

    def alike(self, name: str) -> bytes:
        """Return the digest of a constant: a weight may be stored twice, for many rows and for the last one."""
        if name not in self.digests:
            constant = self.program.constants[name]
            numbers = constant.unpack() if isinstance(constant, Format) else np.asarray(constant, np.float32)
            self.digests[name] = blake2b(np.ascontiguousarray(numbers).data, digest_size=16).digest()
        return self.digests[name]

    def before_choice(self, name: str) -> str:
        """Return the value that a row of each text was chosen of; the value itself where none was."""
        step = self.steps.get(name)
        chosen = step is not None and layer_part(step) == "pooling" and step.attributes["how"] in PICKED
        return self.before_choice(step.operands["x"]) if step is not None and chosen else name

    def users(self, *names: str, part: str) -> Iterator[Step]:
        """Yield the steps with a part in a layer whose rows are one of these values."""
        return (step for step in self.program.steps if layer_part(step) == part and step.operands.get("x") in names)

    def one(self, steps: Iterator[Step], what: str) -> Step:
        """Return the one step of several. Raises InputError unless there is one."""
        several = [*steps]
        if len(several) == 1:
            return several[0]
        raise no_place(what, f"is {len(several) or 'no'} steps of the program")

    def row_numbers(self, name: str) -> Floats:
        """Return a constant that is a row, or a table of a rotation. Raises InputError as `weights`."""
        return self.weights(name, turned=False).numbers

    def weights(self, name: str, turned: bool = True) -> StoredNumbers:
        """Return a constant, outputs first if it is stored inputs first (`turned`). Raises InputError for one in a
        format that is neither exact, nor a number type, nor kept."""
        constant = self.program.constants[name]
        if isinstance(constant, np.ndarray):
            return StoredNumbers(turn_numbers(np.asarray(constant, np.float32), turned))
        if isinstance(constant, Format):
            numbers = turn_numbers(constant.unpack(), turned)
            if constant.plain or constant.unit in HALF_NUMBERS:
                return StoredNumbers(numbers, HALF_NUMBERS.get(constant.unit, "F32"))
            if BLOCKS in self.kept and turned and constant.filed is not None:
                return filed_numbers(constant, numbers)
            if INTEGERS in self.kept and turned and (whole := plain_integers(constant)) is not None:
                return StoredNumbers(numbers, whole=whole, called=constant.name)
        kind = getattr(constant, "name", type(constant).__name__)
        if INTEGERS in self.kept and isinstance(constant, Format) and len(parts := constant.integers()) == 1:
            rest = constant.shape[0] % parts[0].group
            kind += f" in groups of {parts[0].group} of {constant.shape[0]} inputs" if rest else ""
        raise InputError(f"{name} is stored as {kind}, which is not written there: give --onnx or --torch")

    def row(self, step: Step, operand: str, otherwise: float, width: int) -> StoredNumbers:
        """Return an operand that is a row, or one that changes nothing where a step has none."""
        if operand in step.operands:
            return StoredNumbers(np.broadcast_to(self.row_numbers(step.operands[operand]), width).copy())
        return StoredNumbers(np.full(width, otherwise, np.float32))

    def product(self, name: str, low: int = 0, high: int | None = None) -> PlainProduct:
        """Return the product that gives a value, through steps that choose its columns. Raises InputError for a value
        of another step."""
        step = self.steps.get(name)
        if step is not None and layer_part(step) == "narrowing":
            first, last = int(step.attributes["lo"]), int(step.attributes["hi"])
            return self.product(step.operands["x"], first + low, last if high is None else first + high)
        if step is None or layer_part(step) != "weights":
            raise no_place(name, f"is a step of {step.kernel if step else 'no kernel'}, not of a product")
        main, correction = self.corrected(step)
        summed = [step] if main is step else [main, step]
        rows = [self.row_numbers(part.operands["bias"]) for part in summed if "bias" in part.operands]
        bias = np.asarray(np.sum(rows, 0), np.float32)[low:high] if rows else None
        weight = self.weights(main.operands["weight"]).of_outputs(low, high)
        return PlainProduct(main.operands["x"], weight, bias, correction and correction.of_outputs(low, high))

    def corrected(self, step: Step) -> tuple[Step, LowRankCorrection | None]:
        """Return the product that a low-rank product of the same value is added to, in either order; a step without
        such a sum as it is."""
        beside = self.steps.get(step.operands.get("residual", ""))
        if beside is None or layer_part(beside) != "weights" or "residual" in beside.operands:
            return step, None
        for main, last in ((step, beside), (beside, step)):
            thin = self.steps.get(last.operands["x"])
            if thin is None or layer_part(thin) != "weights" or thin.operands.keys() != {"x", "weight"}:
                continue
            if thin.operands["x"] == main.operands["x"]:
                pair = (self.weights(factor.operands["weight"]).numbers for factor in (thin, last))
                return main, LowRankCorrection(*pair)
        return step, None

    def summed(self, step: Step | None) -> tuple[str, Step] | None:
        """Return the value that a step adds a product to, before a choice of rows, and the product, which may be the
        step itself or one before it; None for another step."""
        if step is None or "residual" not in step.operands:
            return None
        if layer_part(step) == "weights":
            return self.before_choice(step.operands["residual"]), step
        if layer_part(step) != "entries" or "times" in step.operands or "activation" in step.attributes:
            return None
        for added, stream in (("residual", "x"), ("x", "residual")):
            product = self.steps.get(step.operands[added])
            if product is None or layer_part(product) != "weights":
                continue
            if "residual" not in product.operands or self.corrected(product)[1] is not None:
                return self.before_choice(step.operands[stream]), product
        return None

    def attentions(self) -> Iterator["AttentionSteps"]:
        """Yield each step of attention with its products. Raises InputError for another step between them."""
        for step in self.program.steps:
            if layer_part(step) != "attending":
                continue
            products, counts, norms = dict[str, PlainProduct](), dict[str, int](), dict[str, Step]()
            for part in "qkv":
                name = step.operands[part]
                while layer_part(before := self.steps[name]) in ("dividing", "norming", "turning"):
                    counts.setdefault(part, int(before.attributes.get("heads", 0)))
                    if "heads" in before.attributes:
                        counts[part] = int(before.attributes["heads"])
                    if layer_part(before) == "norming":
                        norms[part] = before
                    name = before.operands["x"]
                products[part] = self.product(name)
            heads, key_heads = counts.get("q") or 1, counts.get("k") or 1
            columns = len(products["q"].weight.numbers) // heads
            factor = float(step.attributes.get("scale", 1.0)) * columns**0.5  # a class divides scores by its root
            if "q" not in norms:
                products["q"] = products["q"].scaled(factor)
                factor = 1.0
            yield AttentionSteps(step, products, LayerSizes(0, heads, key_heads, columns), norms, factor)

    def gated(self, name: str, where: str) -> tuple[PlainProduct, PlainProduct]:
        """Return the products of a gate and of what it multiplies. Raises InputError for another unit."""
        step = self.steps[name]
        if layer_part(step) in ("weights", "entries") and "times" in step.operands:
            one = step.output if layer_part(step) == "weights" else step.operands["x"]
            other = step.operands["times"]
            gate, up = (one, other) if "activation" in step.attributes else (other, one)
            return self.product(gate), self.product(up)
        raise no_place(where, "is no gated unit")

    def joined(self, attention: Step) -> str:
        """Return the value of all heads side by side."""
        return next((step.output for step in self.users(attention.output, part="flattening")), attention.output)

    def embedding(self) -> Step:
        """Return the step that begins the program. Raises InputError for one of another kernel."""
        return self.one((step for step in self.program.steps if layer_part(step) == "tables"), "the embedding")

    def table(self, step: Step, at: int) -> StoredNumbers:
        """Return a table of an embedding, a row a token."""
        turned = str(at) in str(step.attributes.get("turned", "")).split(",")
        return self.weights(step.operands[f"table{at}"], turned).widened()


def pack_products(products: Sequence[PlainProduct], name: str) -> PlainProduct:
    """Return products of the same rows as one, their outputs behind one another. Raises InputError for a low-rank
    product beside one of them."""
    if any(product.correction is not None for product in products):
        raise no_place(name, "has a low-rank product beside some of its outputs")
    widths = [len(product.weight.numbers) for product in products]
    rows = [
        np.zeros(width, np.float32) if product.bias is None else product.bias
        for product, width in zip(products, widths, strict=True)
    ]
    biased = any(product.bias is not None for product in products)
    weight = pack_numbers([product.weight for product in products])
    return PlainProduct(products[0].x, weight, np.concatenate(rows) if biased else None)


@dataclass(frozen=True)
class NormedBehindReader:
    """The layers of BERT's kin, each part of which is added to its input and normed behind that. `names`: those of the
    parts in files, where units with a gate have its name; `first`: that of the norm of the embedding; `biased`:
    products add a row."""

    reader: ProgramReader
    names: Mapping[str, str]
    first: str = "embeddings.LayerNorm"
    biased: bool = True

    def read(self) -> PlainModel:
        """Read all layers."""
        model, embed = PlainModel(), self.reader.embedding()
        for at, name in enumerate(str(embed.attributes["fields"]).split(",")):
            model.tensors[f"embeddings.{TABLE_NAMES[name]}_embeddings.weight"] = self.reader.table(embed, at)
        width = model.tensors["embeddings.word_embeddings.weight"].numbers.shape[1]
        self.norm(model, embed, self.first, width)
        stream = embed.output
        for number, (attention, products, sizes, norms, _) in enumerate(self.reader.attentions()):
            if norms:
                raise no_place(f"layer {number}", "has norms of heads")
            of = {part: f"{self.names['layer']}.{number}.{name}" for part, name in self.names.items()}
            if {self.reader.before_choice(product.x) for product in products.values()} != {stream}:
                raise no_place(f"layer {number}", "attends to other rows than those of the layer before it")
            for part, product in self.projections(products, of).items():
                model.note(of[part], product, self.biased)
            output = self.added(stream, of["output"], self.reader.joined(attention))
            between = self.behind(model, output, of["output"], of["norm1"], width)
            down = self.added(between, of["down"])
            units = self.units(down[1].operands["x"], of)
            for part, product in units.items():
                model.note(of[part], product, self.biased)
            stream = self.behind(model, down, of["down"], of["norm2"], width)
            model.layers.append(sizes._replace(units=len(units["up"].weight.numbers)))
        return model

    def projections(self, products: Mapping[str, PlainProduct], names: Mapping[str, str]) -> dict[str, PlainProduct]:
        """Return the products of queries, keys and values by the parts that files have: three, or one."""
        if PACKED in names:
            return {PACKED: pack_products([*products.values()], names[PACKED])}
        return dict(zip(("query", "key", "value"), products.values(), strict=True))

    def units(self, name: str, names: Mapping[str, str]) -> dict[str, PlainProduct]:
        """Return the products of hidden units by their parts: one, or two of which one is a gate."""
        if "gate" not in names:
            return {"up": self.reader.product(name)}
        return dict(zip(("gate", "up"), self.reader.gated(name, names["up"]), strict=True))

    def added(self, stream: str, name: str, x: str | None = None) -> tuple[Step, Step]:
        """Return the step that adds a product of a value, or of any, to the stream, and the product."""
        products = dict[str, Step]()
        for step in self.reader.program.steps:
            pair = self.reader.summed(step)
            if pair is not None and pair[0] == stream and (x is None or pair[1].operands["x"] == x):
                products[step.output] = pair[1]
        step = self.reader.one((self.reader.steps[output] for output in products), name)
        return step, products[step.output]

    def behind(self, model: PlainModel, summed: tuple[Step, Step], name: str, norm: str, width: int) -> str:
        """Note a product and the norm behind its sum with the stream; return the normed value."""
        step, product = summed
        model.note(name, self.reader.product(product.output), self.biased)
        if "eps" not in step.attributes:
            step = self.reader.one(self.reader.users(step.output, part="entries"), norm)
        self.norm(model, step, norm, width)
        return step.output

    def norm(self, model: PlainModel, step: Step, name: str, width: int) -> None:
        """Note the gain and the shift of a norm."""
        model.tensors[f"{name}.weight"] = self.reader.row(step, "gain", 1.0, width)
        model.tensors[f"{name}.bias"] = self.reader.row(step, "shift", 0.0, width)


SummedStream = tuple[object, ...]  # a sum of the residual stream: the products that were added to it, one after another


@dataclass(frozen=True)
class GatedReader:
    """The layers of LLaMA's kin: attention and gated units, each of the norm of a stream that it is added to. `biased`:
    the products of attention that add a row."""

    reader: ProgramReader
    biased: str = ""
    normed: bool = False

    def read(self, tied: bool) -> PlainModel:
        """Read all layers, the last norm, and the head if there is one."""
        model, embed = PlainModel(), self.reader.embedding()
        table = self.reader.table(embed, 0)
        model.tensors["embed_tokens.weight"] = table
        width = table.numbers.shape[1]
        stream: SummedStream = (embed.output,)
        for number, (attention, products, sizes, norms, factor) in enumerate(self.reader.attentions()):
            at = f"layers.{number}"
            self.head_norms(model, f"{at}.self_attn", norms, sizes.columns, factor)
            for value in {self.reader.before_choice(product.x): None for product in products.values()}:
                self.norm(model, f"{at}.input_layernorm", value, stream, width)
            for part, product in products.items():
                model.note(f"{at}.self_attn.{part}_proj", product, part in self.biased)
            output, stream = self.added(f"{at}.self_attn.o_proj", stream, self.reader.joined(attention))
            model.note(f"{at}.self_attn.o_proj", output, False)
            down, behind = self.added(f"{at}.mlp.down_proj", stream, None)
            gate, up = self.reader.gated(down.x, f"{at}.mlp")
            self.norm(model, f"{at}.post_attention_layernorm", gate.x, stream, width)
            for part, product in (("gate", gate), ("up", up), ("down", down)):
                model.note(f"{at}.mlp.{part}_proj", product, False)
            model.layers.append(sizes._replace(units=len(up.weight.numbers)))
            stream = behind
        self.end(model, stream, width, tied)
        return model

    def stream(self, name: str) -> SummedStream:
        """Return the stream that a value is, before a norm of the same step."""
        step = self.reader.steps.get(name := self.reader.before_choice(name))
        if (summed := self.reader.summed(step)) is None:
            return (name,)
        before, product = summed
        added = (self.reader.alike(product.operands[name]) for name in ("weight", "bias") if name in product.operands)
        return (*self.stream(before), *added)

    def normed_stream(self, name: str) -> SummedStream:
        """Return the stream that a value is the norm of."""
        step = self.reader.steps[name]
        return self.stream(step.operands["x"] if self.reader.summed(step) is None else name)

    def added(self, name: str, stream: SummedStream, x: str | None) -> tuple[PlainProduct, SummedStream]:
        """Return the product of `x`, or of any value, that is added to a stream, and the sum. It may be two steps, one
        of which gives the norm of the sum."""
        sums = dict[SummedStream, str]()
        for step in self.reader.program.steps:
            pair = self.reader.summed(step)
            if pair is not None and self.stream(pair[0]) == stream and (x is None or pair[1].operands["x"] == x):
                sums[self.stream(step.output)] = pair[1].output
        if len(sums) != 1:
            raise no_place(name, f"is {len(sums) or 'no'} products that are added to their layer")
        [(behind, output)] = sums.items()
        return self.reader.product(output), behind

    def norm(self, model: PlainModel, name: str, value: str, stream: SummedStream, width: int) -> None:
        """Note the gain of a norm. Raises InputError unless the value is the norm of a stream."""
        step = self.reader.steps.get(value)
        if step is None or "eps" not in step.attributes or self.normed_stream(value) != stream:
            raise no_place(name, "is no norm of the rows before it")
        rows = {"shift", "bias"} if layer_part(step) == "entries" else {"shift"}
        if odd := step.operands.keys() & rows:
            raise no_place(f"{name}.bias", f"is the {min(odd)} of a norm")
        gain = self.reader.row(step, "gain", 1.0, width)
        if not np.array_equal(model.tensors.setdefault(f"{name}.weight", gain).numbers, gain.numbers):
            raise no_place(name, "has several gains")

    def head_norms(self, model: PlainModel, name: str, norms: Mapping[str, Step], columns: int, factor: float) -> None:
        """Note the gains of norms of heads, those of queries times the factor of scores. Raises InputError for a norm
        that the class has not, or lacks, and for one with a shift."""
        if bool(norms) != self.normed or norms.keys() - {"q", "k"}:
            raise no_place(name, f"has {', '.join(norms) or 'no'} norms of heads")
        for part, step in norms.items():
            if "shift" in step.operands:
                raise no_place(f"{name}.{part}_norm.bias", "is the shift of a norm")
            gain = self.reader.row(step, "gain", 1.0, columns)
            model.tensors[f"{name}.{part}_norm.weight"] = gain.scaled(factor) if part == "q" else gain

    def end(self, model: PlainModel, stream: SummedStream, width: int, tied: bool) -> None:
        """Note the last norm, and the head behind it, or behind the last row of each text."""
        output = self.reader.steps[self.reader.program.output]
        head = output if layer_part(output) == "weights" and "residual" not in output.operands else None
        value = head.operands["x"] if head else output.output
        while layer_part(step := self.reader.steps[value]) in ("pooling", "normalising"):
            value = step.operands["x"]
        self.norm(model, "norm", value, stream, width)
        if head is None:
            return
        model.head, scores = True, self.reader.product(head.output)
        if scores.bias is not None:
            raise no_place("lm_head.bias", "is a row that laws left behind a product")
        gains = find_gains(scores.weight.numbers, model.tensors["embed_tokens.weight"].numbers) if tied else None
        if gains is None:
            model.tensors["lm_head.weight"] = scores.weight
            return
        model.tied = True
        model.tensors["norm.weight"] = StoredNumbers(model.tensors["norm.weight"].numbers * gains)


def find_gains(head: Floats, table: Floats) -> Floats | None:
    """Return the gains (n,) by which the columns of a table (v, n) are those of a head (v, n); None if there are
    none."""
    squares: NDArray[np.float64] = np.einsum("vn,vn->n", table, table, dtype=np.float64)
    gains = np.einsum("vn,vn->n", head, table, dtype=np.float64) / np.where(squares > 0, squares, 1.0)
    if np.abs(head - table * gains).max() > TIED * np.abs(head).max():
        return None
    return np.asarray(gains, np.float32)


def check_uniform(layers: list[LayerSizes]) -> LayerSizes:
    """Return the sizes of all layers. Raises InputError that names the first one with others."""
    if not layers:
        raise no_place("a program without attention", "has no layer")
    for number, sizes in enumerate(layers):
        for what, first, now in zip(LayerSizes._fields, layers[0], sizes, strict=True):
            if first != now:
                raise InputError(
                    f"layer {number} has {now} {what.replace('_', ' of ')}, layer 0 {first}: a class of "
                    "transformers has one size for all layers: give --onnx or --torch"
                )
    return layers[0]
