"""Spectra of the two products of a head of attention (Elhage et al. 2021): W_q W_kᵀ, by which rows are compared, and
W_v W_o, by which they are moved. They are read from the terms of a model, and only their factors are decomposed."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import matmul

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.shapes import H
from opmatrix.algebra.term import Operator
from opmatrix.spectra.factored import product_singular_values
from opmatrix.spectra.measures import RealArray, Spectrum
from rewrites.report.spectra.stream_layers import StreamLayer

HEAD_MOVES = "heads", "repeat", "join"  # kinds that move columns among heads, and change no number
ROTATION, BIAS, NORM, DISTANCES = "rotations by position", "biases", "norms of heads", "biases by distance"


@dataclass(frozen=True)
class HeadChain:
    """A value as matrices behind another value, the first one next to it, and the parts that were left out."""

    matrices: tuple[Operator, ...]
    left_out: frozenset[str]

    @property
    def columns(self) -> int:
        """Columns of the value that the matrices are behind."""
        return int(self.matrices[0].into.cols)

    def by_heads(self) -> RealArray:
        """Return the matrices multiplied, (heads, columns before, columns after)."""
        product: RealArray = dense(reduce(matmul, self.matrices), np.eye(self.columns))
        return product.reshape(-1, *product.shape[-2:])


def head_spectra(layers: list[StreamLayer], kind: str, notes: list[str]) -> list[Spectrum]:
    """Return the spectrum of the `kind` "qk" or "vo" of each head of each layer. A layer whose products are not found
    is left out, with a line in `notes`; another line says which parts of attention the products do not have. Raises
    InputError where no layer has them."""
    spectra, left_out, missing = list[Spectrum](), set[str](), list[str]()
    for layer in layers:
        chains = next(find_chains(layer.flat, kind), None)
        if chains is None:
            missing.append(f"layer {layer.number}: its {kind} is no product of two matrices a head")
            continue
        left, right = factors_of(kind, *chains)
        left_out.update(*(chain.left_out for chain in chains))
        shape = left.shape[1], right.shape[1]
        for head, values in enumerate(product_singular_values(left, right)):
            spectra.append(Spectrum(values, shape, f"layer.{layer.number}.head {head}", kind))
    if not spectra:
        raise InputError(f"--of {kind}: {missing[0]}, nor is that of any other layer")
    notes += [f"{line}: left out" for line in missing]
    if left_out:
        notes.append(f"{kind} is without {', '.join(sorted(left_out))}")
    return spectra


def find_chains(value: Operator, kind: str) -> Iterator[tuple[HeadChain, HeadChain]]:
    """Yield the two chains of matrices of each attention of a flat value."""
    for attended in attentions(value):
        chains = query_key(attended) if kind == "qk" else value_output(attended, value)
        if chains is not None:
            yield chains


def factors_of(kind: str, first: HeadChain, second: HeadChain) -> tuple[RealArray, RealArray]:
    """Return A (heads, n, d) and B (heads, m, d), whose products A Bᵀ are those of the heads."""
    a = first.by_heads()
    if kind == "qk":
        b = second.by_heads()
    else:
        b = from_heads(second, *a.shape[::2])
    return a, np.broadcast_to(b, (len(a), *b.shape[1:])) if len(b) == 1 else b


def from_heads(chain: HeadChain, heads: int, width: int) -> RealArray:
    """Return matrices behind so many heads of a width as one matrix for each head, transposed: (heads, m, width)."""
    each_column = np.eye(heads * width).reshape(-1, heads, width).swapaxes(0, 1)
    rows: RealArray = dense(reduce(matmul, chain.matrices), each_column)
    return rows.reshape(heads, width, -1).swapaxes(1, 2)


def attentions(value: Operator) -> Iterator[Operator]:
    """Yield the products of a flat value by which rows are mixed: of scores, q kᵀ, and values."""
    for node in value.walk():
        if node.kind.name == "product" and find_scores(node.children[0]) is not None:
            yield node


def find_scores(term: Operator) -> tuple[Operator, frozenset[str]] | None:
    """Return the product q kᵀ of scores, behind their scale and their biases by distance, and what was left out; None
    for another value."""
    left_out = frozenset[str]()
    while term.kind.name in ("add", "compose", "mul"):
        term, other = term.children
        if "by_distance" in {node.kind.name for node in other.walk()}:
            left_out |= {DISTANCES}
        elif term.kind.name != "product" and not other.constant and not other.linear:
            return None
    if term.kind.name == "product" and term.children[1].kind.name == "turn":
        return term, left_out
    return None


def query_key(attended: Operator) -> tuple[HeadChain, HeadChain] | None:
    """Return queries and keys as matrices behind the values that they are made of."""
    compared = find_scores(attended.children[0])
    if compared is None:
        return None
    product, left_out = compared
    q, k = chain_before(product.children[0]), chain_before(product.children[1].children[0])
    return None if q is None or k is None else (HeadChain(q.matrices, q.left_out | left_out), k)


def value_output(attended: Operator, value: Operator) -> tuple[HeadChain, HeadChain] | None:
    """Return values as matrices behind the value that they are made of, and the matrices up to the output."""
    v, o = chain_before(attended.children[1]), chain_after(attended, value)
    return None if v is None or o is None else (v, o)


def chain_before(value: Operator) -> HeadChain | None:
    """Return a value of heads as the matrices between it and the rows of one head that its first weight reads; None
    where there are other operations between."""
    matrices, left_out = list[Operator](), set[str]()
    while True:
        if value.kind.name == "compose":
            value, last = value.children
            if last.kind.name == "rotate":
                left_out.add(ROTATION)
            elif last.linear or last.kind.name in HEAD_MOVES:
                matrices.insert(0, last)
            else:
                return None
            if last.kind.name == "weight" and value.out.heads in (1, H):
                return HeadChain(tuple(matrices), frozenset(left_out))
        elif value.kind.name == "add" and value.children[1].constant:
            value = value.children[0]
            left_out.add(BIAS)
        elif value.kind.name == "mul" and value.children[1].out.cols == 1:
            value = value.children[0]
            left_out.add(NORM)
        else:
            return None


def chain_after(value: Operator, whole: Operator) -> HeadChain | None:
    """Return the matrices that a value goes through next, up to the first weight; None if it goes another way."""
    matrices = list[Operator]()
    readers = {node.children[0]: node for node in whole.walk() if node.kind.name == "compose"}
    while value in readers:
        value = readers[value]
        last = value.children[1]
        if not (last.linear or last.kind.name in HEAD_MOVES):
            return None
        matrices.append(last)
        if last.kind.name == "weight":
            return HeadChain(tuple(matrices), frozenset())
    return None
