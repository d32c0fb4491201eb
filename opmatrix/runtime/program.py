"""Programs: a schedule of kernel calls over planned buffers, which runs, prints, prices itself and is saved."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import Floats, as_contiguous
from formats.core.errors import InputError
from formats.storage.format import Format
from formats.storage.stacked import Stacked
from opmatrix import body
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import Extents, S, T
from opmatrix.algebra.batch.signature import INTEGER, Port, Signature
from opmatrix.algebra.data import Numeric
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.files.certified import longest_seen
from opmatrix.files.mapped import hash_program, pieces
from opmatrix.inference.embed import BATCH_ROWS, OnProgress, Texts, embed_texts, mention_length, options, stream
from opmatrix.inference.pooling import Pooling
from opmatrix.inference.scores.scoring import Scoring
from opmatrix.inference.text import Tokenizer, read_tokenizer
from opmatrix.runtime.codegen.infinite import check_numbers
from opmatrix.runtime.declarations.costs import Costs
from opmatrix.runtime.recorded import least_limits
from opmatrix.runtime.reopened import Reopened
from opmatrix.runtime.schedule import Schedule

if TYPE_CHECKING:
    from opmatrix.inference.chat.chat_options import ChatOptions, Messages
    from opmatrix.inference.chat.reply_grammars import Grammar
    from opmatrix.inference.generation import Prompt, Reply
    from opmatrix.inference.scores.text_pairs import Scored
    from opmatrix.inference.session import Session

ExactRows = NDArray[np.float64]
Constant = Format | Stacked | Numeric
Given = Batch | Iterable[Sequence[int]]  # sentences: rows of token ids
OUTPUT = "output"  # the name of an output without one
ARRAY = {"format": "array"}  # the entry of a constant without a format


@dataclass(frozen=True)
class Step:
    """`output = kernel(operands, attributes)`: operands name constants or the outputs of earlier steps."""

    kernel: str
    operands: Mapping[str, str]
    attributes: Mapping[str, float | int | str]
    output: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "operands", MappingProxyType(dict(self.operands)))
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))

    def show(self, constants: Mapping[str, Constant]) -> str:
        """Return a line of Python; a weight is followed by its format and shape."""
        parts = [f"{name}={ref}{kind(constants.get(ref))}" for name, ref in self.operands.items()]
        parts += [f"{name}={json.dumps(value)}" for name, value in self.attributes.items()]
        return f"{self.output} = {self.kernel}({', '.join(parts)})"


class ById(Mapping[int, Numeric]):
    """Arrays by the id of the constant that they stand for, each made when it is used."""

    def __init__(self, constants: Mapping[str, Constant], arrays: Mapping[str, Numeric]) -> None:
        self.names, self.arrays = {id(constants[name]): name for name in arrays}, arrays

    def __getitem__(self, at: int) -> Numeric:
        return self.arrays[self.names[at]]

    def __iter__(self) -> Iterator[int]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class Profile(NamedTuple):
    """Seconds of whole runs, one number a round, and of each step in them, by the name of its result; views take no
    time, and are left out."""

    runs: list[float]
    steps: dict[str, list[float]]


class Program(Reopened):
    """Steps over constants: float32 rows from a batch of sentences, any number of them of any length: one a token, or
    one a sentence if it pools them, or one of a custom space of the batch.

    `outputs` names its result, or several by name, of which a run returns the first. `inputs` are matrices that it
    reads besides the fields of every batch. `state` names, for an input in space C, its next value: such a program is
    run by a session (`start`). `signature` lists all of them with space, columns, heads and number type.

    It cannot be changed and keeps no data of a call, so threads may share it; the same batch gives the same bits.
    `meta` is JSON: model, config, tokenizer (the text of a tokenizer.json), pooling (see opmatrix.inference.pooling),
    certificate, and other entries. Constants may be stored anywhere, as in mapped files: one that does not begin at a
    multiple of a number's size is copied once. Raises ValueError, which names the step, for an unknown kernel, operand,
    attribute or shape that does not fit."""

    def __init__(
        self,
        steps: Iterable[Step],
        constants: Mapping[str, Constant],
        outputs: str | Mapping[str, str],
        meta: Mapping[str, object] | None = None,
        *,
        inputs: Iterable[Port] = (),
        state: Mapping[str, str] = MappingProxyType({}),
    ):
        self.steps = tuple(steps)
        self.constants = MappingProxyType({name: read_constant(name, constant) for name, constant in constants.items()})
        self.outputs = MappingProxyType({OUTPUT: outputs} if isinstance(outputs, str) else dict(outputs))
        if not self.outputs:
            raise ValueError("output: a program gives one, at least")
        self.inputs = tuple(replace(port, infinite=port.infinite or ()) for port in inputs)
        self.state = MappingProxyType(dict(state))
        self.meta = MappingProxyType(copied(meta or {}))
        self.schedule = Schedule(self.steps, self.constants, self.outputs, self.inputs, self.state)

    @property
    def output(self) -> str:
        """The value that a run returns: its first output."""
        return next(iter(self.outputs.values()))

    @cached_property
    def signature(self) -> Signature:
        """Its inputs, outputs and state, by name."""
        limits, relations = least_limits(self.schedule.calls), dict[str, None]()
        for call in self.schedule.calls:
            relations |= dict.fromkeys(map(str, call.kernel.relations(call.bound)))
        fields = [Port(name, "T", 1, 1, INTEGER) for name in limits]
        return Signature(
            {port.name: port for port in (*self.inputs, *fields)}, tuple(relations), self.schedule.outputs, self.state
        )

    def run(self, batch: Given) -> Floats:
        """Run the program: (T, n), one row a token, sentences one after another; (S, n), one a sentence, if the program
        is `pooled`. Takes a Batch or a list of rows of token ids. Raises ValueError if there is no sentence, one is
        empty, or an id is outside its table. Tells the user once that a text is longer than any that the program was
        verified on."""
        return self.run_outputs(batch)[0]

    __call__ = run

    def run_all(self, batch: Given) -> dict[str, Floats]:
        """Run the program and return every output by name; outputs that are one value are one array. Raises as `run`
        does."""
        return dict(zip(self.outputs, self.run_outputs(batch), strict=True))

    def run_outputs(self, batch: Given) -> list[Floats]:
        """Return the outputs of a run, in order."""
        check_numbers(self, as_batch := batched(batch), outputs := self.schedule.run(as_batch))
        mention_length(self, as_batch)
        return outputs

    @cached_property
    def longest_verified(self) -> int | None:
        """The tokens of the longest text that it was verified on; None without a certificate."""
        certificate = self.meta.get("certificate")
        return longest_seen(certificate) if isinstance(certificate, Mapping) else None

    def exact(self, batch: Given, constants: Mapping[str, Numeric] | None = None, rounded: bool = True) -> ExactRows:
        """Compute (T, n) in float64, by the meanings of the kernels, for the same numbers: slow, the reference of
        `run`. A kernel that rounds its operands means the rounded ones, unless `rounded` is False. Constants may be
        replaced by name, a weight by its (n, p) matrix: by those of a program made before any rounding, for example."""
        return self.schedule.exact(batched(batch), ById(self.constants, constants or {}), rounded)

    def exact_all(
        self, batch: Given, constants: Mapping[str, Numeric] | None = None, rounded: bool = True
    ) -> dict[str, ExactRows]:
        """Compute, as `exact` does, every output by name, and the next value of every piece of state by the name of its
        input."""
        instead = {id(self.constants[name]): array for name, array in (constants or {}).items()}
        values, schedule = self.schedule.meanings(batched(batch), instead, rounded), self.schedule
        state = {schedule.ports[i].name: values[behind] for i, behind in schedule.state.items()}
        return dict(zip(self.outputs, map(values.__getitem__, schedule.results), strict=True)) | state

    def trace(self, batch: Given) -> Iterator[tuple[Step, Floats, ExactRows]]:
        """Yield each step of a run with its result and, in float64, the meaning of its kernel for the same operands:
        their difference is the rounding of the kernel itself."""
        for step, (result, exact) in zip(self.steps, self.schedule.trace(batched(batch)), strict=True):
            yield step, result, exact

    def start(self, capacity: int, exact: bool = False, rewinds: int | None = None) -> "Session":
        """Start a session of a program with state (opmatrix.inference.cached): caches of `capacity` rows, for any
        number of sequences. `exact`: float64, by the meanings of the kernels. If no row sees further behind than a
        window, rows behind it are given back, except for `rewinds` rows that a sequence may always go back, 64 by
        default. Shifts and scans keep states of a sequence after its last row and, for `rewinds` rows before it, 1 by
        default, after each of the last 8 and every 64th further back, between which rows are computed again. Raises
        InputError for a program without state."""
        from opmatrix.inference.session import Session

        return Session(self, capacity, exact, rewinds)

    def embed(
        self,
        texts: Texts,
        rows: int = BATCH_ROWS,
        progress: OnProgress | bool = True,
        *,
        truncate: bool | None = None,
        skip_bad: bool = False,
        prompt: str | None = None,
    ) -> Floats:
        """Return (S, n): an embedding for each text, about `rows` rows at a time, pooled as the checkpoint declares; by
        default the mean of a text's rows, of length one. Texts are one string, any iterable of strings, or the Path of
        a file with one a line; beside the result memory holds a chunk of them. `progress` is called with (done, of);
        True draws a bar for many texts on a terminal. A text that is too long is truncated, special tokens kept, if the
        checkpoint has a max_seq_length; `truncate` True truncates it in any case, False never. With `skip_bad` a text
        that cannot be embedded has a row of NaN. `prompt` names one that the checkpoint declares, in place of its
        default. Raises InputError for a text that is too long or not a text, a file that cannot be read, a prompt that
        is not declared, and a program that was saved without a tokenizer."""
        return embed_texts(self, texts, rows, progress, options(self, texts, truncate, skip_bad, prompt))

    def stream(
        self,
        texts: Texts,
        rows: int = BATCH_ROWS,
        *,
        truncate: bool | None = None,
        skip_bad: bool = False,
        prompt: str | None = None,
    ) -> Iterator[Floats]:
        """Yield the embeddings of `embed` in blocks (count, n), one after another, in the order of the texts."""
        return stream(self, texts, rows, options(self, texts, truncate, skip_bad, prompt))

    def score(
        self,
        pairs: "Iterable[Scored]",
        rows: int = BATCH_ROWS,
        progress: OnProgress | bool = True,
        *,
        truncate: bool | None = None,
        skip_bad: bool = False,
    ) -> Floats:
        """Return (S, labels): the scores of each text, or pair of texts, behind the activation that the checkpoint
        declares. About `rows` rows are computed at a time; the other parameters are those of `embed`. Raises InputError
        for a program without a head that scores texts, and for a text that cannot be read."""
        from opmatrix.inference.scores.text_pairs import check_scoring, score_pairs

        scores = score_pairs(self, pairs, rows, progress, truncate, skip_bad)
        return check_scoring(self).activate(scores)

    def generate(
        self,
        prompts: "Prompt | Iterable[Prompt]",
        *,
        max_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
        cache: str | None = None,
        stop: str | Sequence[str] = (),
        grammar: "Grammar | None" = None,
    ) -> "list[Reply]":
        """Generate a reply to each prompt, a text or token ids: `text`, `ids`, and the reason why it `ended`. Several
        are generated at once, and each has the tokens that it has alone; prompt i is alone with seed + i. The choice of
        tokens: see opmatrix.inference.sampling. `cache`: the number type of keys and values, float32, or bf16 in half
        the bytes. `stop`: strings that a reply ends before, in tokens of any number. `grammar`: what a reply keeps to,
        a JSON schema (an object) or rules in Lark's notation (a text, beginning at `start`). Raises InputError if this
        is no language model, for an invalid choice of tokens, and for a prompt that is empty or leaves no room."""
        from opmatrix.inference.generation import ReplyBounds, generate
        from opmatrix.inference.sampling import Sampling

        bounds = ReplyBounds(max_tokens, stop, grammar)
        return generate(self, prompts, bounds, Sampling(temperature, top_k, top_p, seed), cache)

    def stream_text(
        self,
        prompt: "Prompt",
        *,
        max_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
        cache: str | None = None,
        stop: str | Sequence[str] = (),
        grammar: "Grammar | None" = None,
    ) -> Iterator[str]:
        """Yield the reply to a prompt, piece by piece, in whole characters, as `generate` returns it. Raises as that
        does."""
        from opmatrix.inference.generation import ReplyBounds, stream_reply
        from opmatrix.inference.sampling import Sampling

        bounds = ReplyBounds(max_tokens, stop, grammar)
        return stream_reply(self, prompt, bounds, Sampling(temperature, top_k, top_p, seed), cache)

    def chat(self, messages: "Messages", **options: Unpack["ChatOptions"]) -> "Reply":
        """Reply to the messages of a chat, each an object with a `role`, such as system, user, assistant or tool, and a
        `content`, in the form that the model's template gives them.

        tools, documents   JSON objects that the template describes to the model
        template           the name of one of the model's templates; the default one, or that for tools
        variables          further variables of the template, such as {"enable_thinking": False}
        control_tokens     True: texts in messages that spell control tokens are these tokens; else they stay text
        max_tokens, temperature, top_k, top_p, seed, cache, stop, grammar   as in `generate`

        Prompts and replies are kept in a session: of a prompt only what is behind the longest beginning that is kept is
        computed; `reused` of the reply counts the tokens before it. Raises InputError for messages without roles, a
        program without a template, and a template that raises or has no end."""
        from opmatrix.inference.chat.conversation import reply_to

        return reply_to(self, messages, **options)

    def stream_chat(self, messages: "Messages", **options: Unpack["ChatOptions"]) -> Iterator[str]:
        """Yield the reply to the messages of a chat, piece by piece, as `chat` returns it. Raises as that does."""
        from opmatrix.inference.chat.conversation import stream_to

        return stream_to(self, messages, **options)

    @property
    def decoder(self) -> "Program":
        """The program with state that has the same steps (opmatrix.inference.cached)."""
        return self.decode_with()

    def decode_with(self, number: str | None = None) -> "Program":
        """Return the decoder whose caches hold numbers of this type; None: of the types that the program rounds to.
        Made once."""
        from opmatrix.inference.cached import cached

        decoders: dict[str | None, Program] = vars(self).setdefault("decoders", {})
        if number not in decoders:
            decoders[number] = cached(self, number)
        return decoders[number]

    @property
    def space(self) -> str:
        """The space of the rows that a run returns."""
        return next(iter(self.schedule.outputs.values())).space

    @property
    def pooled(self) -> bool:
        """True if it gives one row a sentence, and not one a token."""
        return self.space == str(S)

    def starts(self, batch: Batch) -> NDArray[np.int64]:
        """Return the offsets of sentences' rows in its result, and their end; in another space each row is its own
        sentence."""
        if self.space == str(T):
            return batch.starts
        return np.arange(self.schedule.extents(batch)[self.space] + 1)

    def vectors(self, batch: Batch, left: int = 0) -> Floats:
        """Return (S, n): an embedding for each sentence, pooled by the program, or by `pooling`, which leaves out the
        first `left` rows of each. Raises InputError if the model answers by a head that the program does not have."""
        if self.scoring and self.pooled:
            raise InputError(
                f"{self.meta.get('model', 'this program')}: it scores texts and pairs of texts and has no embedding: "
                "program.score(pairs), or om.CrossEncoder"
            )
        if self.pooled:
            return self.run(batch)
        if head := self.meta.get("head"):
            raise InputError(
                f"{head!s:.300}: the model returns the scores of a head, and their mean over rows is "
                "not one of its results: take the rows, program.run(program.tokenizer.encode(texts))"
            )
        vectors: Floats = self.pooling(self.run(batch), batch.starts, left)
        return vectors

    @cached_property
    def pooling(self) -> Pooling:
        """The pooling of a text's rows into one embedding, from `meta`. Raises InputError for an invalid entry."""
        return Pooling.parsed(self.meta.get("pooling"), "meta: pooling")

    @cached_property
    def scoring(self) -> Scoring | None:
        """The way in which its model scores texts, from `meta`; None for a model that embeds them. Raises InputError
        for an invalid entry."""
        return Scoring.parsed(self.meta.get("scoring"), "meta: scoring")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, from the text in `meta`."""
        return read_tokenizer(self.meta)

    # ---- its cost

    def profile(self, batch: Given, rounds: int = 15) -> "Profile":
        """Return the seconds of runs, and of each step inside them: measured by native code between its stages, so they
        add up to the run except for the time of Python before and after. Raises as `run` does, and RuntimeError if
        native code finds no clock."""
        from opmatrix.runtime.measure import seconds, undisturbed

        as_batch, names = batched(batch), [*(port.name for port in self.inputs), *(step.output for step in self.steps)]
        inside: list[dict[int, float]] = []
        with undisturbed():
            self.schedule.timed(as_batch)  # compiles, and is not counted
            runs = [seconds(lambda batch: inside.append(self.schedule.timed(batch)), as_batch) for _ in range(rounds)]
        return Profile(runs, {names[step]: [times[step] for times in inside] for step in inside[0]})

    @property
    def stored_bytes(self) -> int:
        """The bytes of the constants, exactly."""
        return sum(constant.nbytes for constant in self.constants.values())

    def peak_bytes(self, batch: Given | Extents) -> int:
        """Return the bytes that a call needs for its result and buffers, for a batch or for extents. Buffers are kept
        for the next call, of any program. Raises as `extents` does."""
        extents = self.extents(batch)
        return self.schedule.peak(extents, None if isinstance(batch, Extents) else batched(batch).starts)

    def cost(self, batch: Given | Extents) -> Costs:
        """Return the machine's kernels that a run calls, in order, each with its sizes: formulas if extents are
        symbols. Raises as `extents` does."""
        return self.schedule.cost(self.extents(batch))

    def extents(self, batch: Given | Extents) -> Extents:
        """Return the extents of a batch, with the patterns of this program; extents are returned as they are. Raises
        ValueError if a step lacks an extent, TypeError for two numbers."""
        if isinstance(batch, tuple) and len(batch) == 2 and all(isinstance(number, int | float) for number in batch):
            raise TypeError(
                f"extents: {batch} does not have the extents of each pattern: give a batch, or "
                f"Extents({{T: {batch[0]}, pairs[sequence]: {batch[1]}}})"
            )
        return batch if isinstance(batch, Extents) else self.schedule.extents(batched(batch), self.patterns)

    @cached_property
    def patterns(self) -> tuple[Pattern, ...]:
        """The patterns by which rows see others in its steps, each once."""
        return tuple(dict.fromkeys(pattern for call in self.schedule.calls for pattern in call.kernel.sees(call.bound)))

    # ---- its identity

    def over(self, steps: Iterable[Step], constants: Mapping[str, Constant] | None = None) -> "Program":
        """Return a program of other steps with the same signature and meta, over the same constants unless others are
        given."""
        held = self.constants if constants is None else constants
        return type(self)(steps, held, self.outputs, self.meta, inputs=self.inputs, state=self.state)

    def replace(self, **meta: object) -> "Program":
        """Return a program that differs in entries of meta; constants are shared. A certificate belongs to one program:
        any other change removes it."""
        same = meta.keys() <= {"certificate"}
        entries = self.meta if same else {name: e for name, e in self.meta.items() if name != "certificate"}
        program = Program(
            self.steps, self.constants, self.outputs, {**entries, **meta}, inputs=self.inputs, state=self.state
        )
        if same and "hash" in vars(self):
            program.hash = self.hash
        return program

    @cached_property
    def hash(self) -> str:
        """The hash of everything but the certificate, which itself holds it; see opmatrix.files.mapped."""
        return hash_program(
            json.dumps(self.described(), sort_keys=True),
            ((name, array.dtype.str, array.shape, pieces(array)) for name, array in self.arrays()),
        )

    def described(self) -> dict[str, Any]:
        """Return everything but the arrays and the certificate, as JSON. A program with one output and without inputs
        has the form of earlier versions, so its hash is unchanged."""
        return {
            "meta": {name: entry for name, entry in self.meta.items() if name != "certificate"},
            "constants": {
                name: c.meta() if isinstance(c, Format | Stacked) else ARRAY for name, c in self.constants.items()
            },
            "steps": [[s.kernel, dict(s.operands), dict(s.attributes), s.output] for s in self.steps],
            **(
                {"output": self.output}
                if self.plain
                else {
                    "inputs": {port.name: port.described() for port in self.inputs},
                    "outputs": dict(self.outputs),
                    "state": dict(self.state),
                }
            ),
        }

    @property
    def plain(self) -> bool:
        """True if it gives one value, and no matrix is an input."""
        return not self.inputs and [*self.outputs] == [OUTPUT]

    def arrays(self) -> Iterator[tuple[str, Numeric]]:
        """Yield the arrays of the constants, in the order of their names: `name` of an array, `name.field` of a
        format."""
        for name, constant in sorted(self.constants.items()):
            if not isinstance(constant, Format | Stacked):
                yield name, constant
            else:
                yield from ((f"{name}.{key}", array) for key, array in constant.arrays().items())

    def save(self, directory: str | Path) -> None:
        """Write the directory, complete or not at all; see opmatrix.files.saving."""
        body("files.saving.save")(self, directory)

    @staticmethod
    def load(directory: str | Path, copy: bool = False, *, laws: ModuleType | str | Path | None = None) -> "Program":
        """Read a saved program, bit for bit. `laws`: the module that declares its custom functions, monoids or
        patterns, or its file, which is run. Raises InputError, which names the file and the field.

        Its weights stay mapped: changing the file in place changes the program's numbers, though never the places that
        it reads; truncating the file ends the process when it next reads there (SIGBUS). Replacing files by renaming,
        as `save` does, is safe. `copy` reads all weights into memory instead."""
        return cast("Program", body("files.loading.load")(directory, copy, laws=laws))

    def __str__(self) -> str:
        low, high = self.meta.get("rows", (1, "any number of"))
        header = f"# {self.meta.get('model', 'program')}: {low} to {high} rows, {self.stored_bytes:,} bytes stored"
        if self.schedule.cached:
            header += f", {self.schedule.cached:,} bytes a row of space C"
        if self.schedule.carried:
            header += f", {self.schedule.carried:,} bytes a state of a sequence"
        lines = [] if self.plain else self.signature.lines()
        return "\n".join(
            [
                header,
                *lines,
                *(step.show(self.constants) for step in self.steps),
                f"return {', '.join(self.outputs.values())}",
            ]
        )

    def __repr__(self) -> str:
        gives = ", ".join(map(str, self.schedule.outputs.values()))
        return (
            f"<Program {self.meta.get('model', '')} {len(self.steps)} steps, {self.stored_bytes:,} bytes stored, "
            f"gives {gives}>"
        )

    def _repr_html_(self) -> str:
        return str(body("display.shown.program_html")(self))


def read_constant(name: str, constant: Constant) -> Constant:
    """Return a constant in its format as it is, and any other as a contiguous array."""
    return constant if isinstance(constant, Format | Stacked) else as_contiguous(name, np.asarray(constant))


def copied(meta: Mapping[str, object]) -> dict[str, Any]:
    """Return meta as JSON stores it. Texts are not converted: that of a tokenizer takes long to write and read."""
    texts = {name: entry for name, entry in meta.items() if type(name) is type(entry) is str}
    stored: dict[str, Any] = json.loads(json.dumps({**meta, **dict.fromkeys(texts, "")}, allow_nan=False))
    return stored | texts


def batched(batch: Given) -> Batch:
    """Return a batch as it is, and sentences as a batch."""
    return batch if isinstance(batch, Batch) else Batch(batch)


def kind(constant: Constant | None) -> str:
    """Return [csr 0.2, 384x1536]: a weight's format, the share of its entries that it stores, its shape; empty for a
    vector."""
    if constant is None or len(constant.shape) == 1:
        return ""
    shape = "x".join(map(str, constant.shape))
    if not isinstance(constant, Format | Stacked):
        return f"[{constant.dtype}, {shape}]"
    stored = sum(array.size for array in constant.arrays().values() if array.dtype.kind == "f")
    share = f" {stored / np.prod(constant.shape):.3g}" if stored != np.prod(constant.shape) else ""
    return f"[{constant.name}{share}, {shape}]"
