"""Programs: a schedule of kernel calls over planned buffers, which runs, prints, prices itself and is saved."""
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

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
from opmatrix.inference.embed import BATCH_ROWS, OnProgress, Texts, embed_texts, mention_length, stream
from opmatrix.inference.pooling import Pooling
from opmatrix.inference.text import Tokenizer, read_tokenizer
from opmatrix.runtime.codegen.infinite import check_numbers
from opmatrix.runtime.declarations.costs import Costs
from opmatrix.runtime.recorded import least_limits
from opmatrix.runtime.reopened import Reopened
from opmatrix.runtime.schedule import Schedule

if TYPE_CHECKING:
    from opmatrix.inference.generation import Prompt, Reply
    from opmatrix.inference.session import Session

ExactRows = NDArray[np.float64]
Constant = Format | Stacked | Numeric
Given = Batch | Iterable[Sequence[int]]                     # sentences: rows of token ids
OUTPUT = "output"                                           # the name of an output that nobody named
ARRAY = {"format": "array"}                                 # what is said of a constant that has no format


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
        """A line of Python; a weight is followed by its format and shape."""
        said = [f"{name}={ref}{kind(constants.get(ref))}" for name, ref in self.operands.items()]
        said += [f"{name}={json.dumps(value)}" for name, value in self.attributes.items()]
        return f"{self.output} = {self.kernel}({', '.join(said)})"


class ById(Mapping[int, Numeric]):
    """Arrays by the id of the constant that they stand for, each made when it is asked for."""

    def __init__(self, constants: Mapping[str, Constant], arrays: Mapping[str, Numeric]) -> None:
        self.names, self.arrays = {id(constants[name]): name for name in arrays}, arrays

    def __getitem__(self, at: int) -> Numeric: return self.arrays[self.names[at]]
    def __iter__(self) -> Iterator[int]: return iter(self.names)
    def __len__(self) -> int: return len(self.names)


class Profile(NamedTuple):
    """Seconds of whole runs, one number a round, and of each step in them, by the name of what it gives; views take
    none, and are left out."""
    runs: list[float]
    steps: dict[str, list[float]]


class Program(Reopened):
    """Steps over constants: float32 rows out of a batch of sentences, any number of them of any length: one a token,
    or, where it pools them, one a sentence, or one of a space of the batch's own.

    `outputs` names the value that it gives, or several by name, of which the first is what a run gives. `inputs` are
    matrices that enter beside what every batch has; `state` has for an input in space C the value that is its next one:
    such a program is run by a session (`start`). `signature` says all of them with space, columns, heads and number
    type.

    It cannot be changed; it keeps nothing of a call, so threads may share it; the same batch gives the same bits.
    `meta` is JSON: model, config, tokenizer (the text of a tokenizer.json), pooling (see opmatrix.inference.pooling),
    certificate, whatever belongs to it. Constants may lie anywhere, as they do in mapped files: what does not begin at
    a multiple of a number's size is copied once. Raises ValueError, which names the step, for an unknown kernel,
    operand, attribute or shape that does not fit."""

    def __init__(self, steps: Iterable[Step], constants: Mapping[str, Constant], outputs: str | Mapping[str, str],
                 meta: Mapping[str, object] | None = None, *, inputs: Iterable[Port] = (),
                 state: Mapping[str, str] = MappingProxyType({})):
        self.steps = tuple(steps)
        self.constants = MappingProxyType({name: read_constant(name, each) for name, each in constants.items()})
        self.outputs = MappingProxyType({OUTPUT: outputs} if isinstance(outputs, str) else dict(outputs))
        if not self.outputs: raise ValueError("output: a program gives one, at least")
        self.inputs = tuple(replace(port, infinite=port.infinite or ()) for port in inputs)
        self.state = MappingProxyType(dict(state))
        self.meta = MappingProxyType(copied(meta or {}))
        self.schedule = Schedule(self.steps, self.constants, self.outputs, self.inputs, self.state)

    @property
    def output(self) -> str:
        """The value that a run gives: its first output."""
        return next(iter(self.outputs.values()))

    @cached_property
    def signature(self) -> Signature:
        """What it reads and gives, by name."""
        limits, relations = least_limits(self.schedule.calls), dict[str, None]()
        for call in self.schedule.calls:
            relations |= dict.fromkeys(map(str, call.kernel.relations(call.bound)))
        fields = [Port(name, "T", 1, 1, INTEGER) for name in limits]
        return Signature({port.name: port for port in (*self.inputs, *fields)}, tuple(relations), self.schedule.outputs,
                         self.state)

    def run(self, batch: Given) -> Floats:
        """(T, n): one row a token, sentences one after another; (S, n): one a sentence, where the program is `pooled`.
        Takes a Batch or a list of rows of token ids; raises ValueError where there is no sentence, one is empty, or an
        id is outside its table. Says once that a text is longer than any that the program was verified on."""
        return self.run_outputs(batch)[0]

    __call__ = run

    def run_all(self, batch: Given) -> dict[str, Floats]:
        """Every output by name, as one run gives them; those that are one value are one array. Raises as `run`
        does."""
        return dict(zip(self.outputs, self.run_outputs(batch), strict=True))

    def run_outputs(self, batch: Given) -> list[Floats]:
        """The outputs of a run, in turn."""
        check_numbers(self, given := batched(batch), found := self.schedule.run(given))
        mention_length(self, given)
        return found

    @cached_property
    def longest_verified(self) -> int | None:
        """Tokens of the longest text that it was verified on; None without a certificate."""
        kept = self.meta.get("certificate")
        return longest_seen(kept) if isinstance(kept, Mapping) else None

    def exact(self, batch: Given, constants: Mapping[str, Numeric] | None = None,
              rounded: bool = True) -> ExactRows:
        """(T, n) in float64, by the meanings of the kernels, for the same numbers: slow, the oracle of `run`. A kernel
        that rounds its operands means the rounded ones, unless `rounded` is False. Constants may be replaced by name, a
        weight by its (n, p) matrix: those of a program made before any rounding, say."""
        return self.schedule.exact(batched(batch), ById(self.constants, constants or {}), rounded)

    def exact_all(self, batch: Given, constants: Mapping[str, Numeric] | None = None,
                  rounded: bool = True) -> dict[str, ExactRows]:
        """What `exact` gives of every output by name, and of the next value of every piece of state by the name of its
        input."""
        instead = {id(self.constants[name]): array for name, array in (constants or {}).items()}
        found, schedule = self.schedule.meanings(batched(batch), instead, rounded), self.schedule
        state = {schedule.ports[i].name: found[behind] for i, behind in schedule.state.items()}
        return dict(zip(self.outputs, map(found.__getitem__, schedule.results), strict=True)) | state

    def trace(self, batch: Given) -> Iterator[tuple[Step, Floats, ExactRows]]:
        """Each step of a run with its result and, in float64, what its kernel means for the same operands: what they
        differ by is what the kernel itself rounds."""
        for step, (found, exact) in zip(self.steps, self.schedule.trace(batched(batch)), strict=True):
            yield step, found, exact

    def start(self, capacity: int, exact: bool = False, rewinds: int | None = None) -> "Session":
        """The session of a program with state (opmatrix.inference.cached): caches of so many rows, for any number of
        sequences. `exact`: float64, by the meanings of the kernels. Where no row sees further behind than a window,
        rows behind it are given back, but for so many `rewinds` that a sequence may always go back, 64 where none are
        given. Raises InputError for a program without state."""
        from opmatrix.inference.session import REWINDS, Session
        return Session(self, capacity, exact, REWINDS if rewinds is None else rewinds)

    def embed(self, texts: Texts, rows: int = BATCH_ROWS, progress: OnProgress | bool = True, *,
              truncate: bool | None = None,
              skip_bad: bool = False) -> Floats:
        """(S, n): an embedding for each text, about `rows` rows at a time, pooled as the checkpoint says; where it says
        nothing, the mean of a text's rows, of length one. Texts are one string, any iterable of strings, or the Path of
        a file with one a line; beside the result memory holds a chunk of them. `progress` is called with (done, of);
        True draws a bar for many texts on a terminal. A text that is too long is cut, special tokens kept, where the
        checkpoint has a max_seq_length; `truncate` True cuts it in any case, False never. With `skip_bad` a text that
        cannot be embedded has a row of NaN. Raises InputError for a text that is too long or none, a file that cannot
        be read, and a program that was saved without a tokenizer."""
        return embed_texts(self, texts, rows, progress, truncate, skip_bad)

    def stream(self, texts: Texts, rows: int = BATCH_ROWS, *, truncate: bool | None = None,
               skip_bad: bool = False) -> Iterator[Floats]:
        """What `embed` gives in blocks (count, n), one after another, in the order of the texts."""
        return stream(self, texts, rows, truncate, skip_bad)

    def generate(self, prompts: "Prompt | Iterable[Prompt]", *, max_tokens: int = 128, temperature: float = 0.0,
                 top_k: int | None = None, top_p: float = 1.0, seed: int = 0,
                 cache: str | None = None) -> "list[Reply]":
        """What follows each prompt, a text or token ids: `text`, `ids`, and why it `ended`. Several are generated at
        once, and each has the tokens that it has alone; prompt i is alone with seed + i. How a token is chosen:
        opmatrix.inference.sampling. `cache`: the number type of keys and values, float32, or bf16 in half the bytes.
        Raises InputError for what is no language model's, no choice, and a prompt that is empty or leaves no room."""
        from opmatrix.inference.generation import generate
        from opmatrix.inference.sampling import Sampling
        return generate(self, prompts, max_tokens, Sampling(temperature, top_k, top_p, seed), cache)

    def stream_text(self, prompt: "Prompt", *, max_tokens: int = 128, temperature: float = 0.0,
                    top_k: int | None = None, top_p: float = 1.0, seed: int = 0, cache: str | None = None
                    ) -> Iterator[str]:
        """What follows a prompt, piece by piece, in whole characters, as `generate` gives it. Raises as that does."""
        from opmatrix.inference.generation import stream_reply
        from opmatrix.inference.sampling import Sampling
        return stream_reply(self, prompt, max_tokens, Sampling(temperature, top_k, top_p, seed), cache)

    @property
    def decoder(self) -> "Program":
        """The program with state of the same steps (opmatrix.inference.cached)."""
        return self.decode_with()

    def decode_with(self, number: str | None = None) -> "Program":
        """The decoder whose caches hold numbers of this type; of none, of those that it rounds to. Made once."""
        from opmatrix.inference.cached import cached
        made: dict[str | None, Program] = vars(self).setdefault("decoders", {})
        if number not in made: made[number] = cached(self, number)
        return made[number]

    @property
    def space(self) -> str:
        """The space of the rows that a run gives."""
        return next(iter(self.schedule.outputs.values())).space

    @property
    def pooled(self) -> bool:
        """Whether it gives one row a sentence, and not one a token."""
        return self.space == str(S)

    def starts(self, batch: Batch) -> NDArray[np.int64]:
        """Where sentences' rows begin in what it gives, and their end; of another space each row is its own."""
        if self.space == str(T): return batch.starts
        return np.arange(self.schedule.extents(batch)[self.space] + 1)

    def vectors(self, batch: Batch) -> Floats:
        """(S, n): an embedding for each sentence, pooled by the program, or as `pooling` says. Raises InputError where
        the model answers by a head that its rows are without."""
        if self.pooled: return self.run(batch)
        if head := self.meta.get("head"):
            raise InputError(f"{head!s:.300}: the model answers by a head, and the mean of its rows is none of its "
                             "answers: take the rows, program.run(program.tokenizer.encode(texts))")
        found: Floats = self.pooling(self.run(batch), batch.starts)
        return found

    @cached_property
    def pooling(self) -> Pooling:
        """What makes one embedding of a text's rows, from `meta`. Raises InputError for what is none."""
        return Pooling.parsed(self.meta.get("pooling"), "meta: pooling")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, from the text in `meta`."""
        return read_tokenizer(self.meta)

    # ---- what it costs

    def profile(self, batch: Given, rounds: int = 15) -> "Profile":
        """Seconds of runs, and of each step inside them: looked at by native code between its stages, so they add up to
        the run but for what Python does before and after. Raises as `run` does, and RuntimeError where native code
        finds no clock."""
        from opmatrix.runtime.measure import seconds, undisturbed
        given, names = batched(batch), [*(port.name for port in self.inputs), *(step.output for step in self.steps)]
        inside: list[dict[int, float]] = []
        with undisturbed():
            self.schedule.timed(given)                      # compiles, and is not counted
            runs = [seconds(lambda batch: inside.append(self.schedule.timed(batch)), given) for _ in range(rounds)]
        return Profile(runs, {names[step]: [each[step] for each in inside] for step in inside[0]})

    @property
    def stored_bytes(self) -> int:
        """Bytes of the constants, exactly."""
        return sum(constant.nbytes for constant in self.constants.values())

    def peak_bytes(self, batch: Given | Extents) -> int:
        """Bytes that a call needs for its result and buffers; of a batch, or of extents. Buffers are kept for the next
        call, of any program. Raises as `extents` does."""
        extents = self.extents(batch)
        return self.schedule.peak(extents, None if isinstance(batch, Extents) else batched(batch).starts)

    def cost(self, batch: Given | Extents) -> Costs:
        """The machine's kernels that a run calls, in order, each with its sizes: formulas where extents are symbols.
        Raises as `extents` does."""
        return self.schedule.cost(self.extents(batch))

    def extents(self, batch: Given | Extents) -> Extents:
        """The extents of a batch, with the patterns of this program; given extents as they are. A step may lack one:
        ValueError. Raises TypeError for two numbers."""
        if isinstance(batch, tuple) and len(batch) == 2 and all(isinstance(each, int | float) for each in batch):
            raise TypeError(f"extents: {batch} does not say what each pattern holds: give a batch, or "
                            f"Extents({{T: {batch[0]}, pairs[sequence]: {batch[1]}}})")
        return batch if isinstance(batch, Extents) else self.schedule.extents(batched(batch), self.patterns)

    @cached_property
    def patterns(self) -> tuple[Pattern, ...]:
        """Who sees whom in its steps, each pattern once."""
        return tuple(dict.fromkeys(each for call in self.schedule.calls for each in call.kernel.sees(call.bound)))

    # ---- what it is

    def over(self, steps: Iterable[Step], constants: Mapping[str, Constant] | None = None) -> "Program":
        """Other steps with the same signature and meta, over the same constants where no others are given."""
        held = self.constants if constants is None else constants
        return type(self)(steps, held, self.outputs, self.meta, inputs=self.inputs, state=self.state)

    def replace(self, **meta: object) -> "Program":
        """A program that differs in entries of meta; constants are shared. A certificate is of one program: what
        makes it another one takes the certificate away."""
        same = meta.keys() <= {"certificate"}
        kept = self.meta if same else {name: e for name, e in self.meta.items() if name != "certificate"}
        found = Program(self.steps, self.constants, self.outputs, {**kept, **meta}, inputs=self.inputs,
                        state=self.state)
        if same and "hash" in vars(self): found.hash = self.hash
        return found

    @cached_property
    def hash(self) -> str:
        """The hash of everything but the certificate, which itself holds it; see opmatrix.files.mapped."""
        return hash_program(json.dumps(self.described(), sort_keys=True),
                      ((name, array.dtype.str, array.shape, pieces(array)) for name, array in self.arrays()))

    def described(self) -> dict[str, Any]:
        """Everything but the arrays and the certificate, as JSON. Of a program with one output and nothing that enters
        as such programs always had it, so its hash is what it was."""
        return {"meta": {name: entry for name, entry in self.meta.items() if name != "certificate"},
                "constants": {name: c.meta() if isinstance(c, Format | Stacked) else ARRAY
                              for name, c in self.constants.items()},
                "steps": [[s.kernel, dict(s.operands), dict(s.attributes), s.output] for s in self.steps],
                **({"output": self.output} if self.plain else {
                    "inputs": {port.name: port.described() for port in self.inputs}, "outputs": dict(self.outputs),
                    "state": dict(self.state)})}

    @property
    def plain(self) -> bool:
        """Whether it gives one value, and no matrix enters."""
        return not self.inputs and [*self.outputs] == [OUTPUT]

    def arrays(self) -> Iterator[tuple[str, Numeric]]:
        """The arrays of the constants, in the order of their names: `name` of an array, `name.field` of a format."""
        for name, constant in sorted(self.constants.items()):
            if not isinstance(constant, Format | Stacked): yield name, constant
            else: yield from ((f"{name}.{key}", array) for key, array in constant.arrays().items())

    def save(self, directory: str | Path) -> None:
        """Writes the directory, whole or not at all; see opmatrix.files.saving."""
        body("files.saving.save")(self, directory)

    @staticmethod
    def load(directory: str | Path, copy: bool = False, *, laws: ModuleType | str | Path | None = None) -> "Program":
        """Reads a saved program, bit for bit; one that has functions, monoids or patterns of one's own with `laws`, the
        module that declares them, or its file, which is run. Raises InputError, which names the file and the field.

        Its weights stay mapped: whoever changes the file in place changes the program's numbers, though never what
        memory it reads; whoever cuts the file short ends the process when it next reads there (SIGBUS). Files that are
        replaced by renaming, as `save` does, harm nobody. `copy` reads all weights into memory instead."""
        return cast("Program", body("files.loading.load")(directory, copy, laws=laws))

    def __str__(self) -> str:
        low, high = self.meta.get("rows", (1, "any number of"))
        header = f"# {self.meta.get('model', 'program')}: {low} to {high} rows, {self.stored_bytes:,} bytes stored"
        if self.schedule.state: header += f", {self.schedule.cached:,} bytes a row of space C"
        said = [] if self.plain else self.signature.lines()
        return "\n".join([header, *said, *(step.show(self.constants) for step in self.steps),
                          f"return {', '.join(self.outputs.values())}"])

    def __repr__(self) -> str:
        gives = ", ".join(map(str, self.schedule.outputs.values()))
        return (f"<Program {self.meta.get('model', '')} {len(self.steps)} steps, {self.stored_bytes:,} bytes stored, "
                f"gives {gives}>")
    def _repr_html_(self) -> str: return str(body("display.shown.program_html")(self))


def read_constant(name: str, constant: Constant) -> Constant:
    return constant if isinstance(constant, Format | Stacked) else as_contiguous(name, np.asarray(constant))


def copied(meta: Mapping[str, object]) -> dict[str, Any]:
    """What JSON keeps of meta. Texts are kept as they are: a tokenizer's takes long to be written and read."""
    texts = {name: entry for name, entry in meta.items() if type(name) is type(entry) is str}
    kept: dict[str, Any] = json.loads(json.dumps({**meta, **dict.fromkeys(texts, "")}, allow_nan=False))
    return kept | texts


def batched(batch: Given) -> Batch: return batch if isinstance(batch, Batch) else Batch(batch)


def kind(constant: Constant | None) -> str:
    """[csr 0.2, 384x1536]: a weight's format, what share of its entries it stores, its shape; nothing of a vector."""
    if constant is None or len(constant.shape) == 1: return ""
    shape = "x".join(map(str, constant.shape))
    if not isinstance(constant, Format | Stacked): return f"[{constant.dtype}, {shape}]"
    stored = sum(array.size for array in constant.arrays().values() if array.dtype.kind == "f")
    share = f" {stored / np.prod(constant.shape):.3g}" if stored != np.prod(constant.shape) else ""
    return f"[{constant.name}{share}, {shape}]"
