"""BERT programs written by hand, from the arrays of a checkpoint: one kernel an operator, or all that can be fused."""

import numpy as np

from formats import Dense
from opmatrix.runtime.program import Program, Step


class Writer:
    """Collects steps and constants; every method gives the name of what the step leaves."""

    def __init__(self, arrays, pack=Dense.pack):
        self.arrays, self.pack, self.steps, self.constants = arrays, pack, [], {}

    def step(self, kernel, attributes=None, **operands):
        self.steps.append(Step(kernel, operands, attributes or {}, f"h{len(self.steps)}"))
        return self.steps[-1].output

    def weight(self, *names):
        """Weights side by side, each turned from out by in to in by out."""
        key = "+".join(names)
        wide = np.concatenate([self.arrays[f"{name}.weight"].T for name in names], 1)
        self.constants.setdefault(key, self.pack(np.ascontiguousarray(wide)))
        return key

    def vector(self, *names):
        self.constants["+".join(names)] = np.concatenate([self.arrays[name] for name in names])
        return "+".join(names)

    def table(self, name):
        self.constants[name] = Dense.pack(self.arrays[f"embeddings.{name}_embeddings.weight"])
        return name

    def norm(self, name):
        return dict(gain=self.vector(f"{name}.LayerNorm.weight"), shift=self.vector(f"{name}.LayerNorm.bias"))


def embedding(write, eps):
    tables = {f"table{i}": write.table(name) for i, name in enumerate(("word", "position", "token_type"))}
    return write.step("embed", {"fields": "tokens,positions,kinds", "eps": eps}, **tables, **write.norm("embeddings"))


def fused_layer(write, x, l, heads, scale, eps):
    """Five products and passes: q, k and v joined, epilogues inside the products."""
    parts = [f"{l}.attention.self.{part}" for part in ("query", "key", "value")]
    n = len(write.arrays[f"{parts[0]}.bias"])
    joined = write.step("linear", x=x, weight=write.weight(*parts), bias=write.vector(*(f"{p}.bias" for p in parts)))
    columns = [write.step("columns", {"lo": i * n, "hi": (i + 1) * n}, x=joined) for i in range(3)]
    q, k, v = (write.step("heads", {"heads": heads}, x=part) for part in columns)
    mixed = write.step("join", x=write.step("attention", {"scale": scale, "where": "sequence"}, q=q, k=k, v=v))
    out, up, down = (f"{l}.{part}.dense" for part in ("attention.output", "intermediate", "output"))
    x = write.step(
        "linear",
        {"eps": eps},
        x=mixed,
        weight=write.weight(out),
        bias=write.vector(f"{out}.bias"),
        residual=x,
        **write.norm(f"{l}.attention.output"),
    )
    u = write.step("linear", {"activation": "gelu"}, x=x, weight=write.weight(up), bias=write.vector(f"{up}.bias"))
    return write.step(
        "linear",
        {"eps": eps},
        x=u,
        weight=write.weight(down),
        bias=write.vector(f"{down}.bias"),
        residual=x,
        **write.norm(f"{l}.output"),
    )


def unfused_layer(write, x, l, heads, scale, eps):
    """One kernel an operator."""
    affine = lambda x, name: write.step(
        "pointwise", x=write.step("linear", x=x, weight=write.weight(name)), bias=write.vector(f"{name}.bias")
    )

    def normed(x, residual, name):
        total = write.step("pointwise", x=x, residual=residual)
        gain, shift = write.norm(name).values()
        scaled = write.step("pointwise", x=write.step("pointwise", {"eps": eps}, x=total), gain=gain)
        return write.step("pointwise", x=scaled, shift=shift)

    q, k, v = (affine(x, f"{l}.attention.self.{part}") for part in ("query", "key", "value"))
    q = write.step("scale", {"factor": scale}, x=q)
    q, k, v = (write.step("heads", {"heads": heads}, x=part) for part in (q, k, v))
    p = write.step("softmax", x=write.step("scores", q=q, k=k))
    mixed = write.step("join", x=write.step("values", p=p, v=v))
    x = normed(affine(mixed, f"{l}.attention.output.dense"), x, f"{l}.attention.output")
    u = write.step("pointwise", {"activation": "gelu"}, x=affine(x, f"{l}.intermediate.dense"))
    return normed(affine(u, f"{l}.output.dense"), x, f"{l}.output")


def bert_program(config, arrays, layer=fused_layer, pack=Dense.pack, **meta):
    """A whole BERT."""
    write, heads, eps = Writer(arrays, pack), config["num_attention_heads"], config["layer_norm_eps"]
    x = embedding(write, eps)
    for i in range(config["num_hidden_layers"]):
        x = layer(write, x, f"encoder.layer.{i}", heads, (config["hidden_size"] // heads) ** -0.5, eps)
    return Program(write.steps, write.constants, x, {"model": "hand-written", "config": config, **meta})


def held(program, arrays):
    """The arrays of the checkpoint with the numbers that the program's weights hold."""
    found = dict(arrays)
    for key, constant in program.constants.items():
        names = [f"{name}.weight" for name in key.split("+")]
        if names[0] not in arrays:
            continue
        for name, part in zip(names, np.split(constant.unpack(), len(names), 1), strict=True):
            found[name] = part.T
    return found
