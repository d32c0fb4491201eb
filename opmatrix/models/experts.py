"""Mixtures of experts: the routing of rows to experts, and the sum of the experts' answers.

E experts are one weight of three axes, a matrix for each head. A gate is a value of E columns, whose rows are 0 except
in the columns of the experts that a row is routed to: ordinary numbers, so everything that holds of values holds of
it."""

from typing import NamedTuple

from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import heads, keep_top, ones, reciprocal, share, total, weight
from opmatrix.algebra.shapes import LiveSize, as_int, certain, expression
from opmatrix.algebra.term import Operator, Value, operator
from opmatrix.models.config import ArraySource, Key, Settings, StackNames, dimension, flag, whole, wrong
from opmatrix.models.llama import gated

EXPERT_KEYS = dict(num_experts=dimension(), num_experts_per_tok=whole())
DENSE_LAYERS = Key(
    "a list of layers by their numbers, from 0",
    lambda said: isinstance(said, list | tuple) and all(type(l) is int and l >= 0 for l in said),
    (),
)
SPARSE_KEYS = dict(decoder_sparse_step=whole(default=1), mlp_only_layers=DENSE_LAYERS, norm_topk_prob=flag(False))
GATED = {
    "experts.gate_proj": StackNames(
        ("experts.#.gate_proj.weight",), "experts.gate_up_proj", 0, 2, "experts.gate_proj.weight"
    ),
    "experts.up_proj": StackNames(
        ("experts.#.up_proj.weight",), "experts.gate_up_proj", 1, 2, "experts.up_proj.weight"
    ),
    "experts.down_proj": StackNames(
        ("experts.#.down_proj.weight",), "experts.down_proj", alone="experts.down_proj.weight"
    ),
}


# ---- routing: operators from the scores of a router, or their shares, to a gate


@operator
def best_shares(x: Value, k: int) -> Value:
    """The k largest shares of a row, 0 for the others (Riquelme et al. 2021)."""
    shares = x @ share
    return keep_top(shares, shares, k)


@operator
def best_of_groups(x: Value, groups: int) -> Value:
    """The largest share of each of `groups` groups of neighbours, 0 for the others: Tang et al. 2025, eq. 5 and 6."""
    shares = x @ share @ heads(groups)
    return keep_top(shares, shares, 1) @ heads(groups).T


@operator
def renormalised(x: Value) -> Value:
    """Rows that sum to one. Renormalised, the shares of some columns are those that the scores of these columns alone
    give: Jiang et al. 2024, section 2.1."""
    return x * (x @ ones @ reciprocal)


# ---- the sum of the experts' answers


def mixture(gate: Operator, answers: Operator, count: LiveSize) -> Operator:
    """Return the sum of the answers of `count` experts, a head each, every one times its column of the gate: Shazeer et
    al. 2017, eq. 1."""
    mixed: Operator = (answers * (gate @ heads(count))) @ total
    return mixed


class Experts(NamedTuple):
    """Gated units that a router chooses among: the number of experts, the hidden units of each, and `asked`, the number
    of experts that a row is routed to. `called` is the name of their number in a config."""

    number: LiveSize
    hidden: LiveSize
    asked: int
    called: str = "num_experts"

    def layer(self, at: ArraySource, name: str, n: LiveSize, act: Operator, gate: Operator) -> Operator:
        """Build the router, the gate that its scores lead to, the experts and their mixture, by the names of a
        checkpoint."""
        if certain(self.asked > self.number):
            raise wrong("num_experts_per_tok", self.asked, f"at most {self.called}, {self.number}")

        def linear(part: str, n: LiveSize, p: LiveSize) -> Operator:
            """Read a stack of weights, one matrix for each expert, stored as (experts, outputs, inputs)."""
            return weight(at(part, self.number, p, n).T)

        router = weight(at(f"{name}.gate.weight", self.number, n).T)
        answers = gated(linear, f"{name}.experts", n, self.hidden, act)
        return mixture(router @ gate, answers, self.number)


def plain_unit(at: ArraySource, name: str, n: LiveSize, f: LiveSize, act: Operator) -> Operator:
    """Build a gated unit that all rows go through, without biases."""
    return gated(lambda part, n, p: weight(at(f"{part}.weight", p, n).T), name, n, f, act)


def asks_experts(config: Settings, l: int) -> bool:
    """True if layer l has experts, by SPARSE_KEYS: every `decoder_sparse_step`th layer has, except those in
    `mlp_only_layers`."""
    return l not in config["mlp_only_layers"] and (l + 1) % config["decoder_sparse_step"] == 0


# ---- the share of a model that one row reads


def kept_columns(gate: Operator, kept: LiveSize | None = None) -> LiveSize:
    """Return an upper bound of the nonzero entries of a row, in each head, where the rows that the gate is given have
    `kept` of them."""
    if kept is None:
        kept = gate.into.cols
    match gate.kind.name, gate.args:
        case "keep_top", (*_, k):
            return int(k)
        case "compose", (a, b):
            return kept_columns(b, kept_columns(a, kept))
        case "mul", (a, b):
            if a.column or b.column:
                return kept_columns(b if a.column else a, kept)  # a number for all columns
            one, other = kept_columns(a, kept), kept_columns(b, kept)
            return other if certain(other <= one) else one
        case "join", (h,):
            return as_int(kept * h)
    return kept if gate.diagonal or gate.splits else gate.out.cols


def gated_answers(term: Operator) -> tuple[Operator, Operator, LiveSize] | None:
    """Return answers, a head each, the gate that they are multiplied by and their number, where a term sums such; else
    None."""
    if term.kind.name != "compose" or term.args[1] is not total or term.args[0].kind.name != "mul":
        return None
    for answers, columns in (term.args[0].args, term.args[0].args[::-1]):
        if columns.kind.name == "compose" and columns.args[1].splits:
            return answers, columns.args[0], columns.args[1].args[0]
    return None


def kept_share(gate: Operator) -> LiveSize:
    """Return the share of its columns that a gate keeps."""
    return as_int(expression(kept_columns(gate)) / expression(gate.out.cols))


def read_shares(model: Operator) -> dict[Data, LiveSize]:
    """Return the share of each array's numbers that one row reads: of the experts, and of rows that a gate is
    multiplied by, as many as the gate keeps; of other arrays all."""
    shares: dict[Data, LiveSize] = {}
    gates = {parts[1] for node in model.walk() if (parts := gated_answers(node))}
    seen: set[tuple[Operator, LiveSize, LiveSize]] = set()
    todo: list[tuple[Operator, LiveSize, LiveSize]] = [(model, 1, 1)]
    while todo:
        if (at := todo.pop()) in seen:
            continue
        seen.add(at)
        node, count, share = at
        if node.out.heads != count:
            count, share = 1, 1  # a value that all heads read
        for data in (stored.base or stored for stored in node.attributes if isinstance(stored, Data)):
            shares[data] = share if shares.get(data, share) == share else 1
        if parts := gated_answers(node):
            answers, gate, experts = parts
            todo += [(gate, 1, 1), (answers, experts, kept_share(gate))]
        elif node.kind.name == "compose" and node.args[0] in gates:
            gate, rows = node.args
            todo += [(gate, 1, 1), (rows, rows.out.heads, kept_share(gate))]
        else:
            todo += [(child, count, share) for child in node.children]
    return shares
