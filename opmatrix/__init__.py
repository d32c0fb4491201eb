"""Transformer layers as matrices of operators: find the fastest program that equals a model, or nearly, and run it.

    import opmatrix as om
    result = om.optimize("minilm", error=0.02)      # searched, verified and measured on this machine, in about a minute
    result.best.program.save("fast")
    program = om.load("fast")                       # in any process, later
    vectors = program.embed(["a sentence", "another"])

An operator maps rows to rows. Operators compose from left to right, and laws see their parts:

    >>> A = om.weight([[1., -2.], [3., 4.]]) @ om.relu
    >>> A([[1., 1.]])
    array([[4., 2.]])
    >>> A.shape, A.linear, A.maps_zero_to_zero
    ((2, 2), False, True)
    >>> attend = om.formula(lambda x: om.product(x @ x.T, x, over="softmax"))
    >>> om.prove(om.weight([[2.]]).T, om.weight([[2.]])).verdict
    'proved'

Public names; `help(om.NAME)` describes each:

    models       optimize, distil, explore, open_model, from_torch, build, promised, FAMILIES
    programs     load, Program, Batch, cached, schedule, to_torch
    encoders     SentenceTransformer, CrossEncoder, SparseEncoder, MultiVectorEncoder
    laws         laws, prove, symbol, substitute
    machines     partition, plan, Mesh, BatchSizes
    training     pullback, dropout, timed_step
    formats      select, choose
    matrices     weight, const, Data, diag, diagonal, row, col, blocks, affine, I, ones, zero, cols, place
    functions    relu, log1p_relu, gelu, gelu_tanh, silu, softplus, elu, tanh, sigmoid, magnitude, ACTIVATIONS
    clamped      clamped_gate, clamped_factor
    powers       capped, exp, expm1, log, square, rsqrt, reciprocal
    scans        scan, cumsum, segsum, decay, linear_attention, gated_linear_attention, delta_rule, gated_delta_rule
    rows         share, keep_top, layernorm, rmsnorm, unit_length, centre, mean, maximum, minimum, softmax
    sums         over, monoids, Monoid
    heads        heads, repeat, sum_heads, total, attention, attention_capped, attention_sunk, grouped, rotate, rotary
    distances    by_distance, at_distances, alibi, bucketed
    values       formula, operator, compose, named, product, transpose, turn, Operator, Value
    batches      given, relation, pick, among, shift, conv
    patterns     Pattern, sequence, causal, window, hubs, scattered, coarse, everyone, mask
    numbers      dense, entrywise
    errors       InputError, FormatError, ShapeError, Infeasible, VerificationError

A module is imported when a name of it is first used. `optimize`, `prove`, `schedule`, `laws`, both encoders and two
errors belong to the package `rewrites` above this one: they are found by name at first use, and no other code here
refers to it."""

import os.path
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, spec_from_file_location
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from formats.core.arrays import FormatError as FormatError
    from formats.core.errors import InputError as InputError
    from formats.storage.select import choose as choose
    from formats.storage.select import select as select
    from opmatrix.algebra import monoids as monoids
    from opmatrix.algebra.batch.batch import *  # noqa: F403
    from opmatrix.algebra.batch.batch_sizes import BatchSizes as BatchSizes
    from opmatrix.algebra.monoid import *  # noqa: F403
    from opmatrix.algebra.operators import *  # noqa: F403
    from opmatrix.algebra.oracles import *  # noqa: F403
    from opmatrix.algebra.positions.distances import *  # noqa: F403
    from opmatrix.algebra.positions.patterns import *  # noqa: F403
    from opmatrix.algebra.term import *  # noqa: F403
    from opmatrix.autodiff.backward_kinds import drop as dropout  # noqa: F401
    from opmatrix.autodiff.pullback import pullback as pullback
    from opmatrix.exports.fx_module import to_torch as to_torch
    from opmatrix.exports.read_back import from_torch as from_torch
    from opmatrix.files.checkpoint import open_model as open_model
    from opmatrix.files.loading import load as load
    from opmatrix.inference.cached import cached as cached
    from opmatrix.models import *  # noqa: F403
    from opmatrix.parallel.cost.timed_step import timed_step as timed_step
    from opmatrix.parallel.search.plans import plan as plan
    from opmatrix.parallel.sharding.mesh import Mesh as Mesh
    from opmatrix.parallel.sharding.partition import partition as partition
    from opmatrix.runtime.program import Program as Program
    from rewrites.approximate.students.distilled import distil as distil
    from rewrites.encoders.cross_encoder import CrossEncoder as CrossEncoder
    from rewrites.encoders.multi_vector_encoder import MultiVectorEncoder as MultiVectorEncoder
    from rewrites.encoders.sentence_transformer import SentenceTransformer as SentenceTransformer
    from rewrites.encoders.sparse_encoder import SparseEncoder as SparseEncoder
    from rewrites.explain.derivations.schedules import schedule as schedule
    from rewrites.explain.exploring.exploration import explore as explore
    from rewrites.extraction import Infeasible as Infeasible
    from rewrites.laws.law import Law as _Law
    from rewrites.proofs.equations import prove as prove
    from rewrites.run import optimize as optimize
    from rewrites.verify import VerificationError as VerificationError

    laws: tuple[_Law, ...]

# modules whose public names are all public here
MODULES = (
    "algebra.operators",
    "algebra.positions.patterns",
    "algebra.batch.batch",
    "algebra.oracles",
    "algebra.term",
    "algebra.monoid",
    "algebra.positions.distances",
    "models",
)
DOOR = {  # public name -> its module, and its name there
    "Program": ("opmatrix.runtime.program", "Program"),
    "load": ("opmatrix.runtime.program", "Program.load"),
    "open_model": ("opmatrix.files.checkpoint", "open_model"),
    "from_torch": ("opmatrix.exports.read_back", "from_torch"),
    "select": ("formats.storage.select", "select"),
    "choose": ("formats.storage.select", "choose"),
    "cached": ("opmatrix.inference.cached", "cached"),
    "to_torch": ("opmatrix.exports.fx_module", "to_torch"),
    "InputError": ("formats.core.errors", "InputError"),
    "FormatError": ("formats.core.arrays", "FormatError"),
    "Infeasible": ("rewrites.extraction", "Infeasible"),
    "VerificationError": ("rewrites.verify", "VerificationError"),
    "CrossEncoder": ("rewrites.encoders.cross_encoder", "CrossEncoder"),
    "SentenceTransformer": ("rewrites.encoders.sentence_transformer", "SentenceTransformer"),
    "MultiVectorEncoder": ("rewrites.encoders.multi_vector_encoder", "MultiVectorEncoder"),
    "SparseEncoder": ("rewrites.encoders.sparse_encoder", "SparseEncoder"),
    "explore": ("rewrites.explain.exploring.exploration", "explore"),
    "optimize": ("rewrites.run", "optimize"),
    "distil": ("rewrites.approximate.students.distilled", "distil"),
    "schedule": ("rewrites.explain.derivations.schedules", "schedule"),
    "partition": ("opmatrix.parallel.sharding.partition", "partition"),
    "Mesh": ("opmatrix.parallel.sharding.mesh", "Mesh"),
    "plan": ("opmatrix.parallel.search.plans", "plan"),
    "BatchSizes": ("opmatrix.algebra.batch.batch_sizes", "BatchSizes"),
    "pullback": ("opmatrix.autodiff.pullback", "pullback"),
    "dropout": ("opmatrix.autodiff.backward_kinds", "drop"),
    "timed_step": ("opmatrix.parallel.cost.timed_step", "timed_step"),
    "prove": ("rewrites.proofs.equations", "prove"),
    "laws": ("rewrites.laws", "EXACT_LAWS"),
}


def body(where: str) -> Any:
    """Return the function behind a method of terms or programs that prints, computes or stores them. It is imported
    when it is first called: terms and programs do not import their printer, their interpreter or their files."""
    module, _, name = where.rpartition(".")
    return getattr(import_module(f"opmatrix.{module}"), name)


OUR_FOLDER = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


class PackagesBeside:
    """A finder of the packages beside this one by their files, whatever `sys.path` has first: a `formats.py` in the
    folder of a user's script is not the package that this one needs."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a package of ours; None for any other module. Raises ImportError if ours is missing."""
        if name not in ("formats", "rewrites"):
            return None
        file = os.path.join(OUR_FOLDER, name, "__init__.py")
        if os.path.exists(file):
            return spec_from_file_location(name, file)
        raise ImportError(f"opmatrix needs its package {name} at {file}, where there is none: install opmatrix again")


class OldModules:
    """A finder, asked last, by which the old name of a module here or in `rewrites` is imported with a warning."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of an old name in either package; None for any other module."""
        if not name.startswith(("opmatrix.", "rewrites.")):
            return None
        return cast("ModuleSpec | None", import_module("formats.core.moved").old_spec(name))


def check_loaded(name: str) -> None:
    """Raise ImportError if another module of that name was imported before this package: a process has one module of a
    name."""
    if (loaded := sys.modules.get(name)) is None:
        return
    file, ours = getattr(loaded, "__file__", None) or str(loaded), os.path.join(OUR_FOLDER, name, "__init__.py")
    if os.path.realpath(file) != ours:
        raise ImportError(
            f"opmatrix needs its package {name} at {ours}, but {file} was imported first, and a process "
            "has one module of a name: rename that one, or import opmatrix before it"
        )


for _ in ("formats", "rewrites"):
    check_loaded(_)
sys.meta_path.insert(0, PackagesBeside)
sys.meta_path.append(OldModules)


def __getattr__(name: str) -> Any:
    """Return the value of a public name: an entry of DOOR, a module of the package, or a name of the first of MODULES
    that has it."""
    if name == "__all__":
        return sorted(
            {
                "monoids",
                *DOOR,
                *(public for module in MODULES for public in import_module(f"opmatrix.{module}").__all__),
            }
        )
    if not name.startswith("_"):
        if name == "monoids":
            return import_module("opmatrix.algebra.monoids")
        if name in DOOR:
            return attrgetter(DOOR[name][1])(import_module(DOOR[name][0]))
        if PathFinder.find_spec(f"opmatrix.{name}", __path__):  # noqa: F405
            return import_module(f"opmatrix.{name}")
        for module in MODULES:
            if name in (imported := import_module(f"opmatrix.{module}")).__all__:
                return getattr(imported, name)
        if (now := import_module("formats.core.moved").current(f"opmatrix.{name}")) != f"opmatrix.{name}":
            return import_module(now)
        if find_spec(f"opmatrix.algebra.{name}"):
            return import_module(f"opmatrix.algebra.{name}")
    raise AttributeError(f"module 'opmatrix' has no attribute {name!r}: `help(opmatrix)` lists what there is")


def __dir__() -> list[str]:
    return list(__getattr__("__all__"))
