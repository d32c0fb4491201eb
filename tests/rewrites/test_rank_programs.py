"""Ranks run programs that the search found for their own numbers: outputs, kernels, what is searched once, what
crosses."""

from functools import cache

import numpy as np
import pytest
import standin

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.algebra.data import Data
from opmatrix.algebra.oracles import dense
from opmatrix.models import build
from opmatrix.parallel.sharding.factor_chain import chain
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import partition
from rewrites.ranks.checked_ranks import check_ranks
from rewrites.ranks.driven_ranks import run_programs
from rewrites.ranks.searched_ranks import compile_ranks
from rewrites.verify.failure import VerificationError

MACHINE = standin.machine()
SIZES = BatchSizes(4, 7)
WIDTHS = dict(
    vocab_size=23,
    hidden_size=16,
    num_attention_heads=4,
    num_hidden_layers=2,
    max_position_embeddings=20,
    intermediate_size=24,
)
CONFIGS = {
    "bert": WIDTHS | dict(model_type="bert", type_vocab_size=2, layer_norm_eps=1e-12),
    "gpt2": dict(model_type="gpt2", vocab_size=23, n_embd=16, n_positions=20, n_head=4, n_layer=2),
    "llama": WIDTHS | dict(model_type="llama", num_key_value_heads=2, rms_norm_eps=1e-5),
}
MESHES = {"tp": Mesh.of(tp=(2, "tensor")), "dp": Mesh.of(dp=(2, "zero3")), "pp": Mesh.of(pp=(2, "pipeline"))}


@cache
def model(name, **changed):
    rng = np.random.default_rng(0)
    return build(CONFIGS[name] | changed, lambda name, *shape: Data(rng.normal(size=shape) * 0.3, name))


def feed(seed=1):
    return Feed(np.random.default_rng(seed).integers(0, 23, (4, 7)))


@cache
def compiled(term, mesh):
    return compile_ranks(partition(term, mesh, SIZES), MACHINE)


def layers_of(name, count):
    return {"n_layer" if name == "gpt2" else "num_hidden_layers": count}


def off(term, found, x):
    wanted = dense(term, Batch([*x.x]))
    return np.linalg.norm(found.value.reshape(wanted.shape) - wanted) / np.linalg.norm(wanted)


@pytest.mark.deep(every=9)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", CONFIGS)
def test_ranks_are_as_near_as_a_program_of_the_whole_model(name, mesh):
    term = model(name, **layers_of(name, 2 if mesh == "pp" else 1))
    programs = compiled(term, MESHES[mesh])
    found = check_ranks(programs, term, MACHINE, feed())
    assert 0 < found.relative <= found.allowed < 1e-5 and 0 < found.nearest <= 1
    assert found.programs == sum(len(programs.programs(place)) for place in programs.items)
    assert not any(programs.interpreted(place) for place in programs.items), "all that is computed is in programs"


def test_kernels_of_a_rank_are_fused():
    """Bias, activation and residual are stages of products, norms ride with what follows; attention is one kernel."""
    programs = compiled(model("bert", num_hidden_layers=1), MESHES["tp"])
    first, second = programs.programs((0,))[:2]
    assert first.kernels.count("attention") == 1 and not {"scores", "softmax", "values"} & {*first.kernels}
    up, down = (step for step in second.program.steps if step.kernel == "linear")
    assert up.attributes["activation"] == "gelu" and "activation" not in down.attributes
    assert second.kernels == ["pointwise", "linear", "linear"], "the sum, what it is added to and the norm are one"
    weights = [second.program.constants[step.operands["weight"]].shape for step in (up, down)]
    assert weights == [(16, 12), (12, 16)], "half of the hidden units"


def test_rotations_are_one_kernel_each():
    """Traced as ten lines: queries are turned, and keys."""
    programs = compiled(model("llama", num_hidden_layers=1), MESHES["dp"])
    [only] = programs.programs((0,))
    assert only.kernels.count("rotate") == 2 and only.kernels.count("attention") == 1


def test_equal_layers_and_ranks_are_searched_once():
    programs = compiled(model("gpt2", n_layer=3), MESHES["tp"])
    assert len(programs.searches) == 4, "first, feed-forward, between layers, last"
    numbers = [each.search for each in programs.programs((0,))]
    assert numbers == [0, 1, 2, 1, 2, 1, 3] == [each.search for each in programs.programs((1,))]
    one, other = programs.programs((0,))[1], programs.programs((0,))[3]
    assert one.kernels == other.kernels and one.program.hash != other.program.hash, "with numbers of its own"
    copies = compiled(model("gpt2", n_layer=1), MESHES["dp"])
    assert copies.programs((0,))[0].program is copies.programs((1,))[0].program


CUT = {
    "tokens and vocabulary": ("bert", 1, Mesh.of(tp=(3, "sequence-vocabulary")), set()),
    "key heads on two ranks each": ("llama", 1, Mesh.of(tp=(4, "tensor-vocabulary")), set()),
    "rows change with heads": ("llama", 1, Mesh.of(cp=(2, "ulysses")), set()),
    "stages": ("gpt2", 2, Mesh.of(pp=(2, "pipeline"), dp=(3, "data"), tp=(2, "sequence")), set()),
    "ring": ("llama", 1, Mesh.of(cp=(3, "ring")), {"ring"}),
    "keys are gathered": ("gpt2", 1, Mesh.of(cp=(2, "gathered")), {"product", "mul"}),
}


@pytest.mark.deep(every=6)
@pytest.mark.parametrize("case", CUT)
def test_rows_and_vocabularies_that_are_cut(case):
    """Positions are those of a rank's own rows; attention between other rows than a rank has is interpreted."""
    name, count, mesh, interpreted = CUT[case]
    term, x = model(name, **layers_of(name, count)), feed()
    programs = compiled(term, mesh)
    assert off(term, run_programs(programs, x), x) < 1e-6
    assert {op for place in programs.items for op in programs.interpreted(place)} == interpreted


def test_what_crosses_is_what_the_formulas_say():
    for name, mesh in (("gpt2", MESHES["tp"]), ("llama", Mesh.of(cp=(2, "ulysses"))), ("gpt2", MESHES["pp"])):
        programs = compiled(model(name, **layers_of(name, 1 + (mesh is MESHES["pp"]))), mesh)
        plan = programs.plan
        for place, meter in run_programs(programs, feed()).meters.items():
            said = {}
            for times, each in plan.crossings(plan.stage(place)):
                key = each.op, each.axis
                said[key] = said.get(key, 0) + times * int(plan.on(each.payload, place))
            assert said == meter.payload
            assert said or place == (1,), "the last stage sends nothing"


def test_numbers_in_place_of_tokens():
    """A layer alone, at a value."""
    term, rng = model("bert", num_hidden_layers=1), np.random.default_rng(0)
    first = chain(term)[2].term
    x = rng.normal(size=(4, 7, 16))
    plan = partition(first, MESHES["tp"], SIZES, tokens=False)
    found = run_programs(compile_ranks(plan, MACHINE), Feed(x)).value[:, 0]
    for rows, each in zip(found, x, strict=True):
        wanted = dense(first, each, Batch([[0] * 7]))
        assert np.linalg.norm(rows - wanted) < 1e-6 * np.linalg.norm(wanted)


def test_a_wrong_number_is_seen():
    """A program of another rank in place of a rank's own: its kernels are right, its terms are not."""
    term = model("gpt2", n_layer=1)
    programs = compile_ranks(partition(term, MESHES["tp"], SIZES), MACHINE)
    items = programs.items[(0,)]
    at = next(k for k, each in enumerate(items) if not isinstance(each, int))
    items[at] = items[at]._replace(program=programs.items[(1,)][at].program)
    with pytest.raises(VerificationError):
        check_ranks(programs, term, MACHINE, feed())
    assert off(term, run_programs(programs, feed()), feed()) > 1e-3


def test_what_no_program_is_for():
    term = model("gpt2", n_layer=1)
    programs = compiled(term, MESHES["dp"])
    with pytest.raises(InputError, match="batch: 2 sequences of 7 tokens: these programs are for 4 of 7"):
        run_programs(programs, Feed(np.zeros((2, 7), np.int64)))
    with pytest.raises(InputError, match="positions: programs of ranks count them from 0"):
        run_programs(programs, Feed(feed().x, {"positions": feed().x * 0}))
    with pytest.raises(InputError, match="tokens: s is a symbol: programs need a number"):
        compile_ranks(partition(term, MESHES["dp"], BatchSizes(4)), MACHINE)
