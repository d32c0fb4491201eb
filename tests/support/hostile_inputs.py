"""Kinds of files that people bring beside a checkpoint: tokenizers, adapters, data sheets, configurations alone."""

import json

import checkpoints
from hostile_file import BATCH, Kind

from formats.machine.datasheets import FILE
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import open_model
from opmatrix.files.directory.merges import RULES
from opmatrix.inference.text import Tokenizer
from opmatrix.parallel.search.plans import plan
from rewrites.search.planned import shapes

TEXTS = ["the river runs", "a" * 60 + "! b", "", "\u00e9 12"]
MODEL = dict(num_hidden_layers=1, hidden_size=6, intermediate_size=8, num_attention_heads=2)
EXPRESSION = RULES["qwen2"].split[0]


class TokenizerFile(Kind):
    file = "tokenizer.json"

    def good(self):
        checkpoints.write_tokenizer(self.path)
        found = json.loads(self.path.read_text())
        steps = [
            found["normalizer"],
            {"type": "Replace", "pattern": {"Regex": "x{2,3}"}, "content": "y"},
            {"type": "Prepend", "prepend": "the "},
        ]
        found["normalizer"] = {"type": "Sequence", "normalizers": steps}
        split = {"type": "Split", "pattern": {"Regex": EXPRESSION}, "behavior": "Isolated", "invert": False}
        found["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, found["pre_tokenizer"]]}
        self.path.write_text(json.dumps(found))

    def read(self):
        return Tokenizer.from_file(self.path).encode(TEXTS).tokens.tobytes()

    def refused(self, error):
        """What a text shows is said of the file by its name alone."""
        said = str(error)
        return ("refused", said) if "tokenizer.json" in said or "text" in said else super().refused(error)


class AdapterFile(Kind):
    """An adapter of a small model, by either of its files."""

    file = "adapter_config.json"

    def good(self):
        model = self.room / "model"
        if not model.exists():
            checkpoints.write(model, **MODEL)
        name, down, up = "encoder.layer.0.attention.self.query", [[0.5] * 6] * 2, [[0.25] * 2] * 6
        config = {
            "peft_type": "LORA",
            "r": 2,
            "lora_alpha": 4,
            "bias": "none",
            "target_modules": ["query"],
            "rank_pattern": {},
            "alpha_pattern": {"query": 3},
            "use_rslora": False,
            "use_dora": False,
        }
        (self.room / "adapter_config.json").write_text(json.dumps(config))
        checkpoints.safetensors(
            self.room / "adapter_model.safetensors",
            {
                f"base_model.model.{name}.lora_{part}.weight": checkpoints.np.array(numbers, "<f4")
                for part, numbers in (("A", down), ("B", up))
            },
        )

    def read(self):
        return dense(open_model(self.room / "model", self.room).operator(), Batch(BATCH)).tobytes()


class AdapterTensors(AdapterFile):
    file = "adapter_model.safetensors"

    def spoil(self, mutator):
        return (mutator.header if mutator.below(3) else mutator.body)(self.content)


class DatasheetFile(Kind):
    """A machine of a user's own, by which a small model is planned."""

    file = "mine.json"

    def good(self):
        self.path.write_text(json.dumps({"Mine": json.loads(FILE.read_text())["A100"]}))

    def refused(self, error):
        """Of what is no machine of several devices the name of the machine tells."""
        return ("refused", str(error)) if str(error).startswith("Mine: ") else super().refused(error)

    def read(self):
        config = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 64, "vocab_size": 96}
        return str(plan(config, 2, str(self.path), batch=2, seq=16, keep=1))


class ConfigurationFile(Kind):
    """A configuration alone, whose shapes are asked for."""

    file, part = "alone.json", "without weights"

    def good(self):
        self.path.write_text(
            json.dumps(
                {
                    "model_type": "llama",
                    "hidden_size": 24,
                    "intermediate_size": 40,
                    "num_attention_heads": 4,
                    "num_key_value_heads": 2,
                    "num_hidden_layers": 2,
                    "vocab_size": 64,
                    "max_position_embeddings": 128,
                    "rms_norm_eps": 1e-5,
                    "rope_theta": 300.0,
                    "rope_scaling": {"rope_type": "linear", "factor": 4.0},
                }
            )
        )

    def read(self):
        return str(shapes(str(self.path)))
