"""What layouts of large published runs need: stages that hold what their own layers save, rows that are sent to each
node once, two directions whose passes hide what the other sends."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import opmatrix as om
from formats.machine.datasheets import datasheet
from opmatrix.models import known
from opmatrix.parallel.cost.expert_work import RowRouting, row_routing
from opmatrix.parallel.cost.layer_work import model_work
from opmatrix.parallel.cost.memory_parts import held_layers
from opmatrix.parallel.cost.prediction import predict
from opmatrix.parallel.cost.strategies import Strategy
from opmatrix.parallel.questions.layouts import find_layout, read_layout
from opmatrix.parallel.schedules.named import SCHEDULES, ChunkedSchedule
from opmatrix.parallel.schedules.simulated import ChunkWork, simulate
from opmatrix.parallel.search.stage_times import best_cut, even_cut, run_stages

MIXTURE = dict(
    model_type="mixtral",
    vocab_size=32000,
    hidden_size=2048,
    intermediate_size=1408,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=16,
    num_local_experts=64,
    num_experts_per_tok=8,
    max_position_embeddings=4096,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
)
HOW = Strategy(dp=64, ep=64, flash=True)


def test_routes_reach_few_nodes():
    """DeepSeek-V3's rows ask 8 experts in 4 of 8 groups: they reach at most 4 nodes, and 3.6 of them on the mean; drawn
    rows that no groups limit reach as many as the form says."""
    limited, free = RowRouting(8, 8, 4), RowRouting(8)
    assert 8 * limited.share_to_nodes(8) == pytest.approx(4 * (1 - 0.75**8))
    assert limited.share_to_nodes(1) == free.share_to_nodes(1) == 1 / 8  # once, whatever its experts
    drawn = np.random.default_rng(0).integers(0, 8, (20_000, 8))
    reached = np.mean([len({*row}) for row in drawn.tolist()])
    assert 8 * free.share_to_nodes(8) == pytest.approx(reached, rel=0.01)
    for nodes in (2, 4, 8, 16, 32):
        assert limited.share_to_nodes(nodes) <= free.share_to_nodes(nodes) <= 1
        assert 8 * limited.share_to_nodes(nodes) <= min(nodes, 4 * max(nodes / 8, 1))
    columns = limited.share_to_nodes(np.array([2.0, 8.0, 32.0]))
    assert columns == pytest.approx([limited.share_to_nodes(n) for n in (2, 8, 32)])
    assert row_routing(known.configuration("deepseek-v3")) == limited and row_routing({}) == RowRouting()


def test_rows_cross_to_each_node_once():
    """A share leaves the node that routing gives, all copies go round inside it, and one rank is asked of each node;
    within one node there is no difference. In eight bits a way of two has half the bytes."""
    near, far = (f"ep over {link.name}" for link in datasheet("H800").links)

    def step(**how):
        return predict(MIXTURE, "H800", replace(HOW, **how), 64, 4096).seconds

    direct, relayed = step(), step(relays=True)
    share = RowRouting(8).share_to_nodes(8)
    assert relayed[far] == pytest.approx(share * direct[far])
    assert relayed[near] == pytest.approx(8 * direct[near])  # direct: of 64 ranks 8 are near
    assert relayed["synchronisation"] < direct["synchronisation"]
    once, alone = (step(ep=8, relays=relays) for relays in (True, False))
    assert once[near] == pytest.approx(alone[near]) and once[far] == alone[far] == 0
    wide, eight = (step(relays=True, sent_in_eight=sent, precision="fp8") for sent in (False, True))
    assert eight[far] == pytest.approx(0.75 * wide[far]) and eight["computation"] == wide["computation"]
    assert step(relays=True, sent_in_eight=True)[far] == relayed[far]  # in sixteen bits
    assert step(sending_cores=20)["computation"] == direct["computation"]  # watts bound what all cores sustain
    slow, fast = (step(sending_cores=cores, precision="fp8")["computation"] for cores in (20, 0))
    assert fast < slow < 132 / 112 * fast


def peak_by_tasks(schedule, stages, virtual, micro_batches, cut):
    """The layers of micro-batches that the fullest stage holds, task by task."""
    graph = ChunkedSchedule(SCHEDULES[schedule], virtual).tasks(stages, micro_batches)
    works = [ChunkWork(1, 1, 1, cut[depth], cut[depth]) for depth in graph.depths]
    return max(simulate(graph, works).peaks)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "interleaved", "dualpipe"])
@pytest.mark.parametrize("balanced", [False, True])
def test_stages_hold_what_their_layers_save(schedule, balanced):
    """The formula is the peak of the tasks. It is more where one of two directions has fewer layers, and where the
    chunk that lacks a layer is held longest it is up to a fifth off."""
    close = dict(rel=1e-12) if schedule != "interleaved" or not balanced else dict(rel=0.2)
    for stages in (2, 4, 8):
        for micro_batches in (2 * stages, 4 * stages):
            for layers in (
                2 * stages,
                4 * stages - 2 * balanced,
                *([] if schedule == "interleaved" else [3 * stages + 3]),
            ):
                virtual = 2 if schedule == "interleaved" else 1
                if (layers + 2 * balanced) % (stages * virtual) and virtual > 1:
                    continue
                strategy = Strategy(pp=stages, virtual=virtual, schedule=schedule, balanced=balanced)
                setting = SimpleNamespace(
                    strategy=strategy, micro_batches=micro_batches, model=SimpleNamespace(count=layers)
                )
                cut = even_cut(layers, stages * virtual, balanced, balanced)
                peak, held = peak_by_tasks(schedule, stages, virtual, micro_batches, cut), layers * held_layers(setting)
                if schedule == "dualpipe":
                    assert peak <= held * (1 + 1e-12) <= peak + stages + 1
                else:
                    assert held == pytest.approx(peak, **close)


@pytest.fixture(scope="module")
def deepseek():
    """DeepSeek-V3 as it was trained; its router keeps experts evenly busy."""
    options = dict(batch=15360, seq=4096, stack="hai-llm", precision="fp8", load=1, keep=1)
    return om.plan("deepseek-v3", 2048, "H800", **options)


def test_deepseeks_layout_is_among_the_first(deepseek):
    """Its trillion tokens took 180,000 hours of an H800 (section 1): a step of 63 million tokens 19.9 s."""
    sizes, found = dict(tp=1, cp=1, pp=16, dp=128, ep=64), deepseek.found
    row = next(row for row in found.best_rows(10) if sizes.items() <= found.sizes.row(row).items())
    assert deepseek.question.forms[found.forms[row]].schedule == "dualpipe"
    published = 180_000 * 3600 / 1e12 * 15360 * 4096 / 2048
    assert found.seconds[row] == pytest.approx(published, rel=0.15)


def test_two_directions_run_task_by_task(deepseek):
    """Chunks of both directions are on a stage, each with its own layers, and hide what crosses."""
    choice = find_layout(deepseek.question, read_layout("tp 1 cp 1 pp 16 dp 128 ep 64 dualpipe", "--only"))
    ran = run_stages(choice)
    assert len(ran.cut) == 16 and len(ran.ran.graph.places) == 32
    assert ran.seconds == pytest.approx(choice.seconds, rel=0.07)
    assert ran.allocated <= choice.prediction.allocated and best_cut(choice, 80e9) is None
    alone = find_layout(deepseek.question, read_layout("tp 1 cp 1 pp 16 dp 128 ep 64 1f1b", "--only"))
    assert alone.seconds > 1.2 * choice.seconds
    state = [choice.prediction.memory[name] / alone.prediction.memory[name] for name in ("weights", "gradients")]
    assert state[0] == pytest.approx(state[1]) and 1.5 < state[0] < 2  # of both directions, and each end once
    assert choice.prediction.seconds["optimiser"] > alone.prediction.seconds["optimiser"]


ALONE = dict(b=2, s=64, t=1, c=1, e=1)


def operations(work):
    """The multiplications and additions of a layer's products."""
    sides = "rows", "inner", "cols", "batch"
    return 2 * sum(each.count * np.prod([getattr(each, side).at(ALONE) for side in sides]) for each in work.products)


ROUTED = dict(
    model_type="deepseek_v3",
    vocab_size=32000,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    n_routed_experts=16,
    num_experts_per_tok=4,
    n_shared_experts=1,
    moe_intermediate_size=128,
    first_k_dense_replace=2,
    n_group=4,
    topk_group=2,
    max_position_embeddings=4096,
    tie_word_embeddings=False,
)


@pytest.mark.parametrize("further", [0, 1, 2])
@pytest.mark.parametrize("dense", [0, 2])
def test_modules_predict_further_tokens(dense, further):
    """A module has a layer, a product of 2 n columns by n and their norms, and scores by the model's own head, whose
    weights are stored once."""
    config = ROUTED | dict(first_k_dense_replace=dense)
    plain, deep = (model_work(config | dict(num_nextn_predict_layers=count), "ring") for count in (0, further))
    (*_, (layer, _)), n, rows = plain.layers, config["hidden_size"], 2 * 64
    more = further * (layer.parameters.at(ALONE) + 2 * n * n + 2 * n)
    assert deep.last.parameters.at(ALONE) == plain.last.parameters.at(ALONE) + more
    assert deep.last.experts.at(ALONE) == further * layer.experts.at(ALONE) and deep.count == plain.count
    joined = 3 * 2 * rows * 2 * n * n  # forward, and backward of the input and of the weights
    added = further * (operations(plain.last) + operations(layer) + joined)
    assert operations(deep.last) == pytest.approx(operations(plain.last) + added)
    how = Strategy(dp=4, pp=2, ep=2, flash=True)
    one, other = (predict(work, "H100", how, 32, 64) for work in (plain, deep))
    assert float(other.seconds["loss"]) == pytest.approx((1 + further) * float(one.seconds["loss"]))
    assert (other.step_seconds > one.step_seconds) == (other.allocated > one.allocated) == (further > 0)


def test_a_forward_pass_predicts_the_next_token_alone():
    plans = [
        om.plan(ROUTED | dict(num_nextn_predict_layers=count), 4, "H100", batch=8, seq=512, keep=1, infer=True)
        for count in (0, 1)
    ]
    assert (
        plans[0].best[0].seconds == plans[1].best[0].seconds and plans[0].model_operations == plans[1].model_operations
    )


def test_deepseeks_module_has_its_published_size():
    """11.5 billion weights of its own, beside 671 of the model: the README of its files."""
    work = model_work(known.configuration("deepseek-v3"), "ring")  # as the plan above has read it
    head = 129280 * 7168
    assert work.last.parameters.at(ALONE) - head == pytest.approx(11.5e9, rel=0.02)
