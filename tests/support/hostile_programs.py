"""Kinds of files of saved programs: every entry of them, and their arrays."""

import json
import re

import checkpoints
import numpy as np
from checkpoints import CONFIG, arrays
from hostile_file import BATCH, Kind
from programs import Writer, bert_program

from formats import FORMATS, Dense, Half
from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.signature import Port
from opmatrix.algebra.operators import given, product, softmax, symbol, weight
from opmatrix.algebra.positions.patterns import causal, mask, sequence
from opmatrix.algebra.term import Data, formula
from opmatrix.files.loading import PROGRAM, WEIGHTS
from opmatrix.runtime.interpreted import write_term
from opmatrix.runtime.program import Program, Step
from rewrites.verify.certificate import certify

TEXTS = ["the bank", "a river runs dry"]


class Saved(Kind):
    """A program of every format, and of every kernel that recordings know. A file that does not fit the hash is given
    the hash that it has, and read again: anybody can do so."""

    file = ""

    def good(self):
        rng, write = np.random.default_rng(0), Writer({})
        rows = lambda *shape: rng.normal(size=shape).astype(np.float32) / 4
        write.constants |= {
            "table": Dense.pack(rows(9, 32)),
            "places": Half.approximate(rows(20, 32)),
            "g": rows(32),
            "stack": rows(4, 8, 8),
            "cos": rows(20, 3),
            "sin": rows(20, 3),
        }
        write.steps.append(
            Step(
                "embed",
                {"table0": "table", "table1": "places", "gain": "g", "shift": "g"},
                {"fields": "tokens,positions", "eps": 1e-5},
                "x",
            )
        )
        x = "x"
        for name, F in FORMATS.items():
            write.constants[name] = F.approximate(rows(32, 32))
            x = write.step("linear", {"eps": 1e-5, "activation": "gelu"}, x=x, weight=name, bias="g", residual=x)
        h = write.step("heads", {"heads": 4}, x=x)
        part = write.step("columns", {"lo": 0, "hi": 16}, x=x)
        k = write.step("rotate", x=write.step("heads", {"heads": 2}, x=part), cos="cos", sin="sin")
        k = write.step("repeat", {"heads": 4}, x=k)
        y = write.step("attention", {"scale": 0.3, "where": "sequence & causal", "tile": 64}, q=h, k=k, v=h)
        y = write.step("join", x=write.step("headwise", x=y, weight="stack"))
        last = write.step(
            "pointwise", {"norm": "rms", "eps": 1e-5}, x=write.step("scale", {"factor": 0.5}, x=y), gain="g"
        )
        self.save(Program(write.steps, write.constants, last))

    def save(self, program):
        checkpoints.write_tokenizer(self.room / "t.json")
        meta = dict(tokenizer=(self.room / "t.json").read_text("utf-8"), config=CONFIG, rows=[1, 512])
        self.finished(program.replace(**meta)).save(self.room / "p")
        self.path = self.room / "p" / self.file

    def finished(self, program):
        return program

    def read(self):
        program = Program.load(self.room / "p")
        return program.hash.encode(), self.used(program)

    def used(self, program):
        return program.run(BATCH).tobytes()

    def outcome(self):
        try:
            program = Program.load(self.room / "p")
        except InputError as error:
            found = re.search(r"hash is '(\w{32})', but the files have '(\w{32})'", str(error))
            if not found:
                return self.refused(error)
            before = (file := self.room / "p" / PROGRAM).read_bytes()
            try:
                file.write_bytes(before.replace(*(f'"hash": "{each}"'.encode() for each in found.groups()), 1))
                return self.signed()
            finally:
                file.write_bytes(before)
        return "same" if (program.hash.encode(), self.used(program)) == self.wanted else "changed", ""

    def signed(self):
        """A file whose hash fits may say anything, and is as safe."""
        try:
            program = Program.load(self.room / "p")
        except InputError as error:
            return self.refused(error)
        try:
            found = program.hash.encode(), self.used(program)
        except ValueError as error:
            return "refused", str(error)
        return "same" if found == self.wanted else "other", "its hash fits"


class Whole(Saved):
    file, part = PROGRAM, ""


class Steps(Saved):
    file, part = PROGRAM, "steps"

    def spoil(self, mutator):
        return mutator.document(json.loads(self.content), ("steps",))


class Constants(Saved):
    file, part = PROGRAM, "constants"

    def spoil(self, mutator):
        return mutator.document(json.loads(self.content), ("constants",))


class Attributes(Saved):
    """Those of one step."""

    file, part = PROGRAM, "attributes"

    def spoil(self, mutator):
        found = json.loads(self.content)
        told = [k for k, step in enumerate(found["steps"]) if step[2]]
        return mutator.document(found, ("steps", mutator.pick(told), 2))


class Header(Saved):
    file, part = WEIGHTS, "header"

    def spoil(self, mutator):
        return mutator.header(self.content)


class Body(Saved):
    file, part = WEIGHTS, "numbers"

    def spoil(self, mutator):
        return mutator.body(self.content)


class Tokenizer(Saved):
    file = "tokenizer.json"

    def used(self, program):
        return program.embed(TEXTS, progress=False).tobytes()

    def good(self):
        self.save(bert_program(CONFIG, arrays(CONFIG)))


class Config(Tokenizer):
    file, part = "config.json", "of a program"


class Certificate(Saved):
    file = "certificate.json"

    def finished(self, program):
        return certify(program, {"error": {"relative": 0.25, "stated": 0.5}}, [Batch(BATCH)])


class Terms(Saved):
    """A program that is read rather than computed: terms over values and arrays, and scores that are kept."""

    file, part = PROGRAM, "terms"

    def good(self):
        rng = np.random.default_rng(0)
        W, seen, table = (Data(rng.normal(size=shape).astype(np.float32)) for shape in ((8, 8), (20, 20), (9, 8)))
        y, where = symbol("y", None, 8), sequence & (causal | mask(seen))
        term = formula(lambda x: x @ y + product(x @ y @ weight(W) @ (x @ y).T, x @ y, over=softmax, where=where) * 0.5)
        text, held = write_term(term + given("tokens", 9) @ weight(table), {y: 0})
        held = {f"c{k}": data.array.astype("f4") for k, data in enumerate(held)}
        constants = {"table": Dense.pack(rng.normal(size=(9, 8))), **held}
        self.save(
            Program(
                [
                    Step("embed", {"table0": "table"}, {"fields": "tokens"}, "x"),
                    Step("heads", {"x": "x"}, {"heads": 2}, "h"),
                    Step("scores", {"q": "h", "k": "h"}, {"scale": 0.5}, "s"),
                    Step("softmax", {"x": "s"}, {"where": "sequence & window(2)"}, "p"),
                    Step("values", {"p": "p", "v": "h"}, {}, "v"),
                    Step("join", {"x": "v"}, {}, "j"),
                    Step("interpret", {"x0": "j", **{name: name for name in held}}, {"term": text}, "z"),
                ],
                constants,
                "z",
            )
        )

    def spoil(self, mutator):
        found = json.loads(self.content)
        inner = mutator.document(json.loads(found["steps"][6][2]["term"]))
        found["steps"][6][2]["term"] = inner.decode("utf-8", "replace")
        return json.dumps(found).encode()


class Patterns(Terms):
    """Random words in the place of a pattern, of a step or of a term."""

    file, part = PROGRAM, "patterns"

    def spoil(self, mutator):
        found, text = json.loads(self.content), mutator.pattern()
        if mutator.below(2):
            found["steps"][3][2]["where"] = text
        else:
            term = json.loads(found["steps"][6][2]["term"])
            for node in term:
                for attribute in node[2] if len(node) > 2 else ():
                    if isinstance(attribute, dict) and "pattern" in attribute:
                        attribute["pattern"] = text
            found["steps"][6][2]["term"] = json.dumps(term)
        return json.dumps(found).encode()


class Gathered(Saved):
    """Rows of tables that lie as products multiply by them: the attributes of the step that gathers."""

    file, part = PROGRAM, "panels"

    def good(self):
        rng, tables = np.random.default_rng(0), [name for name, F in FORMATS.items() if F.panelled]
        constants = {name: FORMATS[name].approximate(rng.normal(size=(24, 9)).astype(np.float32)) for name in tables}
        constants["last"] = Dense.pack(rng.normal(size=(9, 24)).astype(np.float32))
        operands = {f"table{k}": name for k, name in enumerate(constants)}
        said = {"fields": ",".join(["tokens"] * len(operands)), "turned": ",".join(map(str, range(len(tables))))}
        self.save(Program([Step("embed", operands, said, "x")], constants, "x"))

    def spoil(self, mutator):
        return mutator.document(json.loads(self.content), ("steps", 0, 2))


class Border(Saved):
    """A matrix that enters, a relation, several outputs: what a file says of its border."""

    file, part = PROGRAM, "border"

    def good(self):
        rows = lambda *shape: np.random.default_rng(0).normal(size=shape).astype(np.float32)
        self.save(
            Program(
                [
                    Step("linear", {"x": "features", "weight": "w"}, {}, "a"),
                    Step("link", {"x": "a"}, {"relation": "edges: V × V", "over": "max"}, "b"),
                    Step("embed", {"table0": "t"}, {"fields": "tokens"}, "c"),
                ],
                {"w": Dense.pack(rows(8, 4)), "t": Dense.pack(rows(9, 4))},
                {"c": "c", "b": "b", "a": "a"},
                inputs=[Port("features", "V", 8)],
            )
        )

    def spoil(self, mutator):
        return mutator.document(json.loads(self.content), (mutator.pick(["inputs", "outputs", "state", "signature"]),))

    def used(self, program):
        given = {"features": np.arange(24, dtype=np.float32).reshape(3, 8)}
        found = program.run_all(Batch(BATCH, inputs=given, relations={"edges": np.eye(3)}))
        return b"".join(f"{name} {array.shape}".encode() + array.tobytes() for name, array in found.items())
