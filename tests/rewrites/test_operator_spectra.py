"""Spectra of what is never formed, against decompositions of the formed matrices: heads, Jacobians, errors; and what is
said of inputs that show little."""

import numpy as np
import pytest
from test_families import BERT, GPT2, LLAMA, T5

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.oracles import dense
from opmatrix.models import build
from opmatrix.runtime.cotangents import pull_back
from opmatrix.spectra import Spectrum
from rewrites.approximate.predicted_errors import OutputProbe
from rewrites.report.spectra.error_spectra import name_site
from rewrites.report.spectra.head_spectra import head_spectra
from rewrites.report.spectra.jacobian_spectra import Derivative, jacobian_spectra
from rewrites.report.spectra.operator_spectra import error_spectra, spectrum_record
from rewrites.report.spectra.stream_layers import stream_of

MIXTURE = LLAMA | dict(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2)
NORMED = LLAMA | dict(model_type="qwen3", head_dim=4)
CONFIGS = dict(
    bert=BERT | dict(model_type="bert"),
    gpt2=GPT2 | dict(model_type="gpt2"),
    llama=LLAMA | dict(model_type="llama"),
    t5=T5 | dict(model_type="t5"),
    qwen3=NORMED,
    mixtral=MIXTURE,
)
TEXT = Batch([[3, 4, 5], [7, 8]])
LONGER = Batch([[3, 4, 5, 6], [7, 8, 9, 2, 11], [30, 2]] * 12)


def drawn(config, seed=0):
    """A model and its arrays by name."""
    rng, arrays = np.random.default_rng(seed), {}

    def at(name, *shape):
        arrays.setdefault(name, rng.normal(size=shape) * (0.3 if len(shape) > 1 else 0.1) + (len(shape) == 1))
        return Data(arrays[name], name)

    return build(config, at), arrays


def projections(family, arrays, layer):
    """Wq, Wk, Wv, Wo of a layer as they multiply rows from the right, by the names that the family's files have."""
    if family == "gpt2":
        q, k, v = np.split(arrays[f"h.{layer}.attn.c_attn.weight"], 3, 1)
        return q, k, v, arrays[f"h.{layer}.attn.c_proj.weight"]
    names = {
        "bert": [f"encoder.layer.{layer}.attention.{part}" for part in ("self.query", "self.key", "self.value")]
        + [f"encoder.layer.{layer}.attention.output.dense"],
        "t5": [f"encoder.block.{layer}.layer.0.SelfAttention.{part}" for part in "qkvo"],
    }.get(family, [f"layers.{layer}.self_attn.{part}_proj" for part in "qkvo"])
    return [arrays[f"{name}.weight"].T for name in names]


def by_head(matrix, width, heads):
    """The columns of each head, shared by groups of heads where there are fewer."""
    parts = np.split(matrix, matrix.shape[1] // width, 1)
    return [parts[head * len(parts) // heads] for head in range(heads)]


@pytest.mark.parametrize("family", CONFIGS)
def test_heads_have_the_singular_values_of_their_formed_products(family):
    config = CONFIGS[family]
    model, arrays = drawn(config)
    heads = next(config[name] for name in ("num_attention_heads", "n_head", "num_heads") if name in config)
    layers = stream_of(model).layers
    for layer in range(2):
        q, k, v, o = projections(family, arrays, layer)
        width = q.shape[1] // heads
        gains = [arrays.get(f"layers.{layer}.self_attn.{part}_norm.weight", np.ones(width)) for part in "qk"]
        wanted = {
            "qk": [
                (a * gains[0]) @ (b * gains[1]).T
                for a, b in zip(by_head(q, width, heads), by_head(k, width, heads), strict=True)
            ],
            "vo": [a @ b.T for a, b in zip(by_head(v, width, heads), by_head(o.T, width, heads), strict=True)],
        }
        for kind, products in wanted.items():
            spectra = head_spectra(layers[layer : layer + 1], kind, [])
            assert [one.name for one in spectra] == [f"layer.{layer}.head {head}" for head in range(heads)]
            for one, formed in zip(spectra, products, strict=True):
                full = np.linalg.svd(formed, compute_uv=False)
                assert one.shape == formed.shape and len(one.values) == min(width, len(full))
                np.testing.assert_allclose(one.values, full[: len(one.values)], rtol=1e-10, atol=1e-12)


def test_heads_say_what_they_leave_out():
    said = {}
    for family, config in CONFIGS.items():
        notes = []
        head_spectra(stream_of(drawn(config)[0]).layers, "qk", notes)
        said[family] = "; ".join(notes)
    assert said["llama"] == "qk is without rotations by position"
    assert said["qwen3"] == "qk is without norms of heads, rotations by position"
    assert said["t5"] == "qk is without biases by distance"
    assert said["bert"] == said["gpt2"] == "qk is without biases"


def test_a_model_without_such_products_is_refused_by_name():
    mixed = om.formula(lambda x: x + om.product(x @ x.T, x, over="softmax", where=om.sequence))
    model = om.weight(Data(np.eye(5, 4), "table")) @ mixed
    with pytest.raises(InputError, match="--of qk: layer 0: its qk is no product of two matrices a head"):
        head_spectra(stream_of(model).layers, "qk", [])
    with pytest.raises(InputError, match="no layers"):
        stream_of(om.weight(np.eye(5, 4)) @ om.gelu)


def test_heads_at_the_widths_of_bert():
    rng = np.random.default_rng(2)
    W = {name: rng.normal(size=(768, 768)) / 28 for name in "qkvo"}
    q, k, v = (om.weight(Data(W[name], name)) for name in "qkv")
    layer = om.I + om.attention(q, k, v, 12, om.sequence) @ om.weight(Data(W["o"], "o"))
    model = om.weight(Data(rng.normal(size=(9, 768)), "table")) @ layer
    spectra = head_spectra(stream_of(model).layers, "qk", [])
    assert len(spectra) == 12 and all(one.shape == (768, 768) and len(one.values) == 64 for one in spectra)
    for head in (0, 11):
        columns = slice(64 * head, 64 * head + 64)
        formed = np.linalg.svd(W["q"][:, columns] @ W["k"][:, columns].T, compute_uv=False)
        np.testing.assert_allclose(spectra[head].values, formed[:64], rtol=1e-10)


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("family", CONFIGS)
def test_jacobians_are_those_of_the_formed_matrix(family):
    """All columns by differences of the layer itself, in float64; the energy of unknown values by probes."""
    stream = stream_of(drawn(CONFIGS[family])[0])
    notes = []
    spectra = jacobian_spectra(stream, TEXT, notes, 5)
    rows = dense(stream.entrance, TEXT)
    for layer, one in zip(stream.layers, spectra[:2], strict=True):
        formed = formed_jacobian(layer.term, rows)
        values = np.linalg.svd(formed, compute_uv=False)
        np.testing.assert_allclose(one.values, values[:5], rtol=1e-6)
        assert one.shape == formed.shape and not one.whole
        assert one.energy.sum() + one.beyond == pytest.approx(np.square(values).sum(), rel=0.15)
        rows = dense(layer.term, rows, TEXT)
    assert bool(notes) == (family == "mixtral")


def formed_jacobian(term, rows, h=1e-6):
    columns = []
    for at in range(rows.size):
        step = np.zeros(rows.size)
        step[at] = h
        step = step.reshape(rows.shape)
        columns.append((dense(term, rows + step, TEXT) - dense(term, rows - step, TEXT)).ravel() / (2 * h))
    return np.stack(columns, 1)


def test_the_output_by_rows_is_found_by_probes(monkeypatch):
    """The mean of g gᵀ over directions u with E u uᵀ = I is Σ J_tᵀ J_t: exactly, where they are all axes."""

    def axes(_, shape):
        size = int(np.prod(shape))
        return np.sqrt(size) * np.eye(size).reshape(size, *shape)

    monkeypatch.setattr("rewrites.report.spectra.jacobian_spectra.random_directions", axes)
    stream = stream_of(drawn(CONFIGS["llama"])[0])
    rows = dense(stream.entrance, TEXT)
    whole = om.formula(lambda x: x @ stream.layers[0].term @ stream.layers[1].term @ stream.exit)
    formed = formed_jacobian(whole, rows).reshape(-1, *rows.shape)
    values = np.sqrt(np.linalg.eigvalsh(np.einsum("oti,otj->ij", formed, formed))[::-1])
    spectra = jacobian_spectra(stream, TEXT, [], 5)
    assert [one.name for one in spectra[2:]] == [f"layer.{layer}.output by rows before" for layer in range(2)]
    np.testing.assert_allclose(spectra[2].values, values, rtol=1e-6, atol=1e-6 * values[0])


def test_a_mean_of_rows_is_pulled_back():
    pooled = om.formula(lambda x: om.product(x @ om.given("members"), x, over="mean")) @ om.unit_length(1e-30)
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(TEXT.rows, 6))
    derivative = Derivative(pooled, TEXT, rows)
    v, u = rng.normal(size=(3, *rows.shape)), rng.normal(size=(3, len(TEXT), 6))
    np.testing.assert_allclose((derivative.push(v) * u).sum((1, 2)), (derivative.pull(u) * v).sum((1, 2)), rtol=1e-7)


def test_layers_without_a_pullback_are_named():
    most = om.formula(lambda x: x + om.product(x @ x.T, x, over="max", where=om.sequence))
    model = om.weight(Data(np.eye(40, 6), "table")) @ most
    with pytest.raises(InputError, match=r"--of jacobian: layer 0: pullback: .*max.* has no pullback.*left out"):
        jacobian_spectra(stream_of(model), TEXT, [], 3)


def silent(*_):
    """No progress."""


def rooted(square):
    sizes, axes = np.linalg.eigh(square)
    return axes * np.sqrt(np.maximum(sizes, 0)) @ axes.T


@pytest.mark.parametrize("family", CONFIGS)
def test_errors_are_those_of_the_formed_whitened_weight(family):
    """Symmetric roots of both covariances, formed, with the rows and cotangents that `pull_back` gives."""
    model, arrays = drawn(CONFIGS[family])
    errors = error_spectra(model, LONGER, silent)
    spectra = {one.name: one for one in errors.spectra()}
    probe = OutputProbe(errors.program, LONGER)
    size = np.linalg.norm(probe.output.astype(float))
    sites = errors.multiplied()
    numbers = {step: site for site in sites.values() for step in site.readers(errors.program)}
    compared = 0
    for pulled in pull_back(errors.program, LONGER, probe.signs(), numbers):
        if pulled.call.kernel.name != "linear":
            continue
        site = numbers[pulled.step]
        x, g = np.float64(pulled.arguments["x"]), np.float64(pulled.cotangents)
        S = np.einsum("kti,ktj->ij", g, g) / len(g)
        formed = np.linalg.svd(rooted(x.T @ x) @ site.numbers() @ rooted(S), compute_uv=False)
        one = spectra[name_site(site)]
        assert one.kind == "error" and one.shape == site.numbers().shape and name_site(site) in arrays
        np.testing.assert_allclose(
            one.values, formed[: len(one.values)] / size / np.sqrt(len(x)), rtol=1e-4, atol=2e-6 * one.values[0]
        )
        compared += 1
    assert compared == len([site for site in sites.values() if not site.heads]) > 7


def test_experts_have_the_spectra_of_their_own_rows():
    """A change of one expert's matrix, to first order: its spectrum's energy is that of leaving the matrix out, were
    rows and cotangents independent. Against the cotangent of a change of the matrix by itself, on rows apart."""
    model, arrays = drawn(CONFIGS["mixtral"])
    apart = Batch([[token] for token in range(40)])
    errors = error_spectra(model, apart, silent)
    spectra = {one.name: one for one in errors.spectra()}
    stacks = [name for name in arrays if "experts" in name]
    assert sum("expert " in name for name in spectra) == 4 * len(stacks)
    assert any("chooses entries" in note for note in errors.notes)
    probe = OutputProbe(errors.program, apart)
    sites = {step: site for site in errors.multiplied().values() for step in site.readers(errors.program) if site.heads}
    for pulled in pull_back(errors.program, apart, probe.signs(), sites):
        a = pulled.call.kernel.record(**pulled.arguments)
        rows = np.flatnonzero(a.gate.reshape(len(a.x), -1)[:, 1])
        site = next(
            one
            for one in errors.multiplied().values()
            if one.heads
            and pulled.step in one.readers(errors.program)
            and errors.program.steps[pulled.step].operands["down"] == one.constant
        )
        up, beside, down = (np.float64(stack[1]) for stack in (a.up, a.beside, a.down))
        raised = a.x[rows] @ up
        hidden = raised / (1 + np.exp(-raised)) * (a.x[rows] @ beside)
        g = pulled.cotangents[:, rows] * a.gate.reshape(len(a.x), -1)[rows, 1][:, None]
        S = np.einsum("kti,ktj->ij", g, g) / len(g)
        formed = np.linalg.svd(rooted(hidden.T @ hidden) @ down @ rooted(S), compute_uv=False)
        one = spectra[f"{name_site(site)}.expert 1"]
        size = np.linalg.norm(probe.output.astype(float))
        wanted = formed[: len(one.values)] / size / np.sqrt(len(rows))
        np.testing.assert_allclose(one.values, wanted, rtol=1e-3, atol=1e-5 * wanted[0])


def test_the_tail_is_the_error_of_the_best_rank_where_nothing_follows():
    """Rows times W are the output itself: cotangents are independent of rows, and the tail is the squared error."""
    rng = np.random.default_rng(6)
    W = rng.normal(size=(20, 12)) * 0.6 ** np.arange(12)
    model = om.weight(Data(rng.normal(size=(300, 20)), "table")) @ om.weight(Data(W, "W"))
    tokens = Batch([[*range(10 * at, 10 * at + 10)] for at in range(30)])
    errors = error_spectra(model, tokens, silent)
    [one] = errors.spectra()
    assert one.name == "W" and errors.notes == []
    y = dense(model, tokens)
    for rank in (0, 2, 5):
        left, sizes, right = np.linalg.svd(y, full_matrices=False)
        best = left[:, :rank] * sizes[:rank] @ right[:rank]
        error = np.linalg.norm(y - best) / np.linalg.norm(y)
        assert np.sqrt(np.square(one.values[rank:]).sum()) == pytest.approx(error, rel=0.1)


def chained(*numbers):
    """A model of products by weights, named in order."""
    model = om.weight(Data(np.random.default_rng(8).normal(size=(40, 6)), "table"))
    for at, W in enumerate(numbers):
        model = model @ om.weight(Data(W, f"W{at}")) @ om.gelu
    return model


def test_little_is_said_of_rows_that_show_little():
    rng = np.random.default_rng(9)
    first, second = rng.normal(size=(6, 6)), rng.normal(size=(6, 6))
    same = error_spectra(chained(first, second), Batch([[3] * 4] * 12), silent)
    assert [one.rank_at(1e-9) for one in same.spectra()] == [1, 1]
    assert any(note.startswith("W0: its rows are all the same on this text: one direction") for note in same.notes)
    unused = chained(first * (np.arange(6) > 1), second)
    singular = error_spectra(unused, LONGER, silent)
    assert len(singular.spectra()) == 2
    assert "W1: 2 of 6 columns of its rows are 0 on this text: singular" in singular.notes
    few = error_spectra(chained(first, second), Batch([[3, 4], [5, 6]]), silent)
    assert [len(one.values) for one in few.spectra()] == [4, 4]
    assert few.notes == [
        "4 rows of text for weights of up to 6 rows: further values of these are 0 here: give more lines, --text FILE"
    ]


def test_weights_that_the_output_does_not_depend_on_are_named():
    rng = np.random.default_rng(10)
    first, second, ones = *rng.normal(size=(2, 6, 6)), om.weight(Data(np.ones((40, 6)), "ones"))
    cut = error_spectra(chained(first, 0 * second) + ones, LONGER, silent)
    with pytest.raises(InputError, match=r"no weight has a spectrum: .*W0: no change of it reaches the output"):
        cut.spectra()
    assert "W1: all of its values are 0 on this text: left out" in cut.notes
    zero = error_spectra(chained(first) @ om.weight(Data(np.zeros((6, 6)), "Z")), LONGER, silent)
    with pytest.raises(InputError, match=r"--of error: the output on this text has norm 0"):
        zero.spectra()


def test_weights_before_a_step_without_a_pullback_are_named():
    rng = np.random.default_rng(11)
    table, first, last = (
        om.weight(Data(rng.normal(size=(n, 6)), name)) for name, n in dict(t=40, first=6, last=6).items()
    )
    most = om.formula(lambda x: om.product(x @ x.T, x, over="max", where=om.sequence))
    errors = error_spectra(table @ first @ most @ (om.I + om.gelu @ last), LONGER, silent)
    assert [one.name for one in errors.spectra()] == ["last"]
    assert any("declares no pullback: the 1 weights before it are left out" in note for note in errors.notes)
    blocked = error_spectra(table @ first @ most, LONGER, silent)
    with pytest.raises(InputError, match=r"no weight has a spectrum: .*declares no pullback"):
        blocked.spectra()


def test_a_record_has_the_same_figures_for_every_kind():
    rng = np.random.default_rng(12)
    whole = Spectrum.of(rng.normal(size=(30, 20)), "layers.3.q_proj.weight")
    part = Spectrum(whole.values[:5], (30, 20), "layer.1.jacobian", "jacobian", 1e-8, 400.0)
    first, second = map(spectrum_record, (whole, part))
    assert first.keys() == second.keys()
    assert (first["layer"], first["matrix"], first["size"]) == (3, "q_proj", [30, 20])
    assert first["energy"] == pytest.approx(np.square(whole.values).sum())
    assert (second["tail_1"], second["bend"], second["effective"], second["power_law"]) == (None,) * 4
    assert first["power_law"]["values"] >= 10 and first["power_law"]["from_sigma"] in first["values"]
