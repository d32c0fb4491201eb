"""Every kind of file that opmatrix reads: of programs (hostile_programs.py), checkpoints, the cache, reports, what
users write."""

import json

import checkpoints
import ggufs
import hostile_inputs  # noqa: F401
import hostile_programs  # noqa: F401  first among the kinds
from hostile_file import BATCH, KINDS, Kind  # noqa: F401

from formats.machine.model import Machine, NotThisMachine, Rates, here
from formats.machine.prices import FORMAT_CATALOGUE
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import Checkpoint
from opmatrix.inference.text import read_lines
from rewrites.approximate import error_cache as remember
from rewrites.cli.machine import environment
from rewrites.extraction import serialised
from rewrites.metrics.pairs import SentencePairs
from rewrites.metrics.reported import Reported

# ---- checkpoints: no hash says what their numbers were


class Model(Kind):
    shards = 1

    def good(self):
        checkpoints.write(self.room, shards=self.shards, num_hidden_layers=1, hidden_size=6, intermediate_size=8)

    def read(self):
        opened = Checkpoint.open(self.room)
        return dense(opened.operator(), Batch(BATCH)).tobytes()


class ModelConfig(Model):
    file, part = "config.json", "of a checkpoint"


class ModelHeader(Model):
    file, part = "model.safetensors", "header"

    def spoil(self, mutator):
        return mutator.header(self.content)


class ModelBody(Model):
    file, part = "model.safetensors", "numbers"

    def spoil(self, mutator):
        return mutator.body(self.content)


class Index(Model):
    file, shards = "model.safetensors.index.json", 3


class Shard(Model):
    file, part, shards = "model-00002-of-00003.safetensors", "a shard", 3

    def spoil(self, mutator):
        return (mutator.header if mutator.below(2) else mutator.body)(self.content)


class Gguf(Kind):
    """Bytes of a file before its numbers."""

    file = "small.gguf"

    def good(self):
        ggufs.write(self.path)

    def read(self):
        opened = Checkpoint.open(self.path)
        return dense(opened.operator(), Batch(BATCH)).tobytes() + opened.tokenizer_text.encode()

    def spoil(self, mutator):
        end = len(self.content) - sum(array.nbytes for array in ggufs.arrays().values())
        if mutator.below(3) == 0:
            return mutator.text(self.content[:end]) + self.content[end:]  # moved, or cut
        spoilt = bytearray(self.content)
        for _ in range(1 + mutator.below(3)):
            spoilt[mutator.below(end)] = mutator.pick([0, 1, 127, 128, 255, mutator.below(256)])
        return bytes(spoilt)


class Declared(Model):
    """What sentence-transformers lays beside a checkpoint."""

    file = "modules.json"

    def good(self):
        super().good()
        checkpoints.pool(self.room, files={"1_Pooling/config.json": {"embedding_dimension": 6}})

    def read(self):
        return Checkpoint.open(self.room).pooling()


class Modes(Declared):
    file = "1_Pooling/config.json"


# ---- the cache


class Calibration(Kind):
    file, refusals = "machine.json", (NotThisMachine,)

    def good(self):
        declared = FORMAT_CATALOGUE
        prices = {kernel: [1e-9] * len(declared[kernel].terms) for kernel in declared.common}
        one_row = {"linear.dense": prices["linear.dense"]}
        ways = {"apart": Rates({"linear.half": prices["linear.half"]})}
        Machine(prices, one_row=one_row, **here(), ways=ways).save(self.path)

    def read(self):
        return repr(Machine.load(self.path, FORMAT_CATALOGUE))


class Blas(Kind):
    file = "blas.json"

    def good(self):
        self.path.write_text(json.dumps({"processor": environment.processor(), "core": "Haswell", "rates": {"": 1.0}}))

    def read(self):
        kept, environment.file = environment.file, lambda: self.path
        try:
            return environment.blas()
        finally:
            environment.file = kept


class Recalled(Kind):
    file = "errors.json"

    def good(self):
        self.path.write_text(json.dumps({"w": [["csr", [["density", 0.5]], "plain", 0.25]]}))

    def read(self):
        return remember.recall(self.path, ["w"])


# ---- reports


class Report(Kind):
    file = "report.json"

    def good(self):
        point = dict(measured_s=0.5, measured_bytes=9, predicted_error=0.25, measured_error=None)
        front = [{"name": name, **point} for name in "ab"]
        said = dict(
            tokens=128,
            number_type="float32",
            without=["fusion"],
            text=None,
            chosen=1,
            front=front,
            error=0.02,
            memory=5e6,
        )
        self.path.write_text(json.dumps(said | {"laws": {"file": "/some/laws.py", "sha256": "0" * 64}}))

    def read(self):
        return repr(Reported.read(self.path))


# ---- what users write


class Csv(Kind):
    file = "pairs.csv"

    def good(self):
        self.path.write_text("score,sentence1,sentence2\n" + '0,"a, b",c\n1,d,e\n' * 5)

    def spoil(self, mutator):
        return mutator.text(self.content)

    def read(self):
        found = SentencePairs.read(self.path)
        return found.texts, found.scores.tobytes()


class Lines(Kind):
    file = "lines.txt"

    def good(self):
        self.path.write_text("".join(f"line {k} é\n" for k in range(9)), "utf-8")

    def spoil(self, mutator):
        return mutator.text(self.content)

    def read(self):
        return read_lines(self.path)


class Egraph(Kind):
    file = "egraph.json"

    def good(self):
        nodes = {
            f"n{k}": {"op": "f", "cost": 1.5, "eclass": f"c{k // 2}", "children": [f"n{k // 2 - 2}"] * (k > 3)}
            for k in range(12)
        }
        self.path.write_text(json.dumps({"nodes": nodes, "root_eclasses": ["c5"]}))

    def read(self):
        return repr(tuple(serialised.read_problem(self.path)))
