"""Schedules by hand (Halide: Ragan-Kelley et al. 2013): `schedule("minilm") | join_qkv | prune(0.5)`. A stage applies
laws to the program wherever they fit, or stores its weights by an approximation. The result is priced, verified and
run like the result of a search, because it consists of the same parts."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from formats import FORMATS, FormatError
from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import Extents, collect_needs
from opmatrix.algebra.monoids import softmax
from opmatrix.algebra.term import Operator
from opmatrix.display.tables import megabytes, ms, percent, table
from opmatrix.files.checkpoint import open_model
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.pricing import this_machine
from opmatrix.runtime.program import Given, Program
from opmatrix.runtime.scheme import Running
from rewrites.approximate.sites import fitter, sites
from rewrites.egraph.borders import FULL
from rewrites.egraph.layers import Part, check_possible, parts
from rewrites.egraph.template import spell_values
from rewrites.explain.derivations.by_hand import Applied, Rewrite, apply_stages, refusal
from rewrites.explain.derivations.chain import Chain, describe_method
from rewrites.explain.derivations.derivation import Application, Derivation, Otherwise
from rewrites.explain.derivations.finding import lowered
from rewrites.explain.derivations.stages import ScheduleStage, Store, TileStage, find_law
from rewrites.explain.derivations.trees import READ, Tree
from rewrites.explain.derivations.wording import TRUST, TreeWriter
from rewrites.extraction import Extraction, Infeasible, extract
from rewrites.laws.law import PARTITION, Law, apart
from rewrites.lowering.lower import KernelCall, Lowering, Method, Use, plainly
from rewrites.lowering.price import Prices, TimeModel
from rewrites.search.approximation import Approximation
from rewrites.search.emit import Emitter
from rewrites.search.fit import Fitter
from rewrites.search.search import Structure, search
from rewrites.verify import VerificationError, verify_laws
from rewrites.verify.differences import difference
from rewrites.verify.programs import oracle, unrounded, verify_approximate, verify_exact, verify_structure
from rewrites.verify.routed import Reference
from rewrites.workload.resolve import source
from rewrites.workload.workload import Workload

MAX_TILE_KEYS, EQUAL_SPLITS = 4096, 1e-9  # most keys of a tile; tolerance of equal splits
VERIFIED_ROWS, ROUNDED = 256, 1e-6  # rows that are verified; rounding of float32
StoredSite = tuple[int, int, str]  # part, class and layout of a weight


@dataclass(frozen=True)
class HandSchedule:
    """A program under way: a model, the batch that is priced, a machine, and the stages so far. `stage | stage` reads
    from left to right."""

    model: Operator
    batch: Batch
    machine: TimeModel
    fit: Batch
    held_out: Batch
    meta: dict[str, object] = field(default_factory=dict, repr=False)
    stages: tuple[ScheduleStage, ...] = ()
    before: "HandSchedule | None" = field(default=None, repr=False)

    def __or__(self, stage: ScheduleStage | Law | str) -> "HandSchedule":
        """Return the program after one more stage: a law, its name, a composition or an approximation. Raises
        InputError, which names the place and the reason, for a stage that does not apply."""
        if isinstance(stage, str | Law):
            law = find_law(stage) if isinstance(stage, str) else stage
            stage = Rewrite(law.name, (law,))
        if not isinstance(stage, Rewrite | Store | TileStage):
            raise InputError(
                f"{stage!r} is not a stage: give a law, its name, a composition such as join_qkv, an "
                "approximation such as prune(0.5), or tile(64)"
            )
        if isinstance(stage, Rewrite) and (done := next((s for s in self.stages if not isinstance(s, Rewrite)), None)):
            raise InputError(
                f"{stage.name} after {done.name}: laws come first, since they change weights and "
                f"kernels: put {stage.name} before {done.name}"
            )
        after = replace(self, stages=(*self.stages, stage), before=self)
        if isinstance(stage, TileStage):
            return after.tiled(stage)
        return after.applied() if isinstance(stage, Rewrite) else after.stored(stage)

    # ---- laws

    def applied(self) -> "HandSchedule":
        """Return itself, if the last stage applies to some part. Raises InputError otherwise."""
        stage = self.stages[-1]
        assert isinstance(stage, Rewrite)
        if not any(result.counts[-1][name] for result in self.rewritten for name in stage.goals):
            reasons = dict.fromkeys(
                refusal(result, law) for law in stage.laws if law.name in stage.goals for result in self.rewritten
            )
            near = sorted(reasons, key=lambda reason: (reason.count(" not "), " has no " in reason))
            raise InputError(f"{stage.name}: it applies nowhere: {'; '.join(near[:2])}")
        return self

    @cached_property
    def extents(self) -> Extents:
        """The sizes of the priced batch that the model depends on."""
        return self.batch.extents(*collect_needs(self.model))

    @cached_property
    def split(self) -> list[Part]:
        """The parts of the model, each from full value to full value; values that laws name have these names."""
        return [
            replace(part, template=spell_values(part.template, self.laws))
            for part in (states[FULL] for states in parts(self.model))
        ]

    @cached_property
    def rewritten(self) -> list[Applied]:
        """The result of the laws for every part; equal parts share one."""
        stages = [stage for stage in self.stages if isinstance(stage, Rewrite)]
        known = {part.template.text: number for number, part in reversed([*enumerate(self.split)])}
        results = {number: apply_stages(self.split[number], number, stages) for number in sorted(set(known.values()))}
        return [results[known[part.template.text]].over(part) for part in self.split]

    @property
    def laws(self) -> tuple[Law, ...]:
        """The laws of all stages."""
        return tuple(dict.fromkeys(law for stage in self.stages if isinstance(stage, Rewrite) for law in stage.laws))

    @cached_property
    def structure(self) -> Structure:
        """The cheapest kernels of exactly this program. Raises InputError if some operator has none."""
        prices = Prices(self.machine, self.extents)
        lowerings = [
            Lowering(result.alone, part.template, prices)
            for result, part in zip(self.rewritten, self.split, strict=True)
        ]
        extractions = [
            choose_kernels(lowering, result) for lowering, result in zip(lowerings, self.rewritten, strict=True)
        ]
        seconds = sum(extraction.time for extraction in extractions)
        return Structure(
            lowerings, extractions, [(FULL, FULL)] * len(extractions), self.split, seconds, seconds, seconds, seconds
        )

    @cached_property
    def exact(self) -> tuple[Program, Emitter]:
        """The program with its weights as they are, and the emitter of its constants."""
        return self.structure.program(self.meta)

    @cached_property
    def derivation(self) -> Chain:
        """Every application of a law, and of an approximation, as a step."""
        first = {part.template.text: number for number, part in reversed([*enumerate(self.split)])}
        like = tuple(first[part.template.text] for part in self.split)
        derived = []
        for result, lowering, extraction in zip(
            self.rewritten, self.structure.lowerings, self.structure.extractions, strict=True
        ):
            forest = replace(result.forest, lowering=lowering)
            _, called = forest.extracted(extraction, result.tree.cls)
            derived.append(Derivation(result.forest, result.start, (*result.steps, *lowered(called))))
        chain = Chain(tuple(derived), like, ((FULL, FULL),) * len(derived), self.laws)
        chain = chain.approximated(self.alone) if self.methods else chain
        return (
            chain
            if self.keys is None
            else replace(chain, parts=tuple(split_axis(part, self.keys) for part in chain.parts))
        )

    # ---- tiles

    def tiled(self, stage: TileStage) -> "HandSchedule":
        """Return itself, if there is attention to tile. Raises InputError otherwise."""
        if not 1 <= stage.keys <= MAX_TILE_KEYS:
            raise InputError(f"{stage.name}: from 1 to {MAX_TILE_KEYS} keys at a time")
        if done := next((s for s in self.stages[:-1] if isinstance(s, TileStage)), None):
            raise InputError(f"{stage.name}: attention has {done.name} already: leave one out")
        if not self.applications():
            raise InputError(
                f"{stage.name}: no part has a product over softmax that one kernel computes: "
                f"there are {', '.join(dict.fromkeys(step.kernel for step in self.exact[0].steps))}"
            )
        return self

    @property
    def keys(self) -> int | None:
        """The number of keys that attention merges at a time, if a stage sets it."""
        return next((stage.keys for stage in self.stages if isinstance(stage, TileStage)), None)

    def split_holds(self, seed: int = 0) -> float:
        """Return the relative difference of softmax over tiles of `keys` keys from softmax over all at once, for the
        longest sentence of the batch: the law behind `tile`, on random numbers."""
        rng, longest = np.random.default_rng(seed), int(np.diff(self.batch.starts).max())
        scores, values = rng.normal(size=(3, longest)), rng.normal(size=(longest, 5))
        return apart(
            softmax.product(scores, values, tile=self.keys or longest), softmax.product(scores, values, tile=longest)
        )

    # ---- approximations

    def stored(self, stage: Store) -> "HandSchedule":
        """Return itself, if the last stage stores some weight, and none that is stored otherwise already. Raises
        InputError otherwise."""
        if not (chosen := self.choice(stage)):
            names = ", ".join(dict.fromkeys(name for site in self.sites for name in self.names(site)))
            raise InputError(f"{stage.name}: no weight is called {' or '.join(stage.only)}: there are {names}")
        assert self.before is not None
        if taken := next((site for site in chosen if site in self.before.methods), None):
            raise InputError(
                f"{stage.name}: {' and '.join(self.names(taken))} is stored as "
                f"{self.before.methods[taken]} already: name other weights, or leave one stage out"
            )
        for site in chosen:
            try:
                if stage.own is None:
                    *_, n, p = self.sites[site].shape  # of each expert, where there are several
                    FORMATS[stage.format].expected(n, p, **stage.parameters)
                _ = self.fitter.store(self.sites[site], self.methods[site], site)
            except FormatError as error:
                raise InputError(f"{stage.name}: {' and '.join(self.names(site))}: {error}") from error
        return self

    @cached_property
    def sites(self) -> dict[StoredSite, np.ndarray]:
        """Every weight of a product, as it is stored (in x out)."""
        program, emitter = self.exact
        return {site.key: site.numbers() for site in sites(program, self.structure, emitter) if site.x}

    def names(self, site: StoredSite) -> list[str]:
        """Return the names of the arrays that a weight is made of."""
        part, cls, _ = site
        return [*map(str, self.structure.lowerings[part].arrays(cls))]

    def choice(self, stage: Store) -> list[StoredSite]:
        """Return the weights that a stage stores."""
        return [
            site
            for site in self.sites
            if not stage.only or any(word in name for word in stage.only for name in self.names(site))
        ]

    @cached_property
    def methods(self) -> dict[StoredSite, Method]:
        """The methods of weights that are not stored as they are."""
        return {
            site: self.method(stage, site)
            for stage in self.stages
            if isinstance(stage, Store)
            for site in self.choice(stage)
        }

    def method(self, stage: Store, site: StoredSite) -> Method:
        """Return the method by which a stage stores a weight. Raises InputError if no format holds the result of a
        user's approximation."""
        if stage.own is None:
            return Method(stage.format, tuple(stage.parameters.items()), FORMATS[stage.format].metric())
        prices, (n, p) = Prices(self.machine, self.extents), self.sites[site].shape
        if not (methods := [*stage.own.methods(self.sites[site])]):
            raise InputError(
                f"{stage.name}: {' and '.join(self.names(site))}: no format stores its result in fewer bytes than dense"
            )
        return min(methods, key=lambda method: prices.linear(method.format, n, p, method.parameters))

    @cached_property
    def fitter(self) -> Fitter:
        """The fitter of weights to their inputs on calibration rows."""
        program, emitter = self.exact
        return fitter(
            program, [site for site in sites(program, self.structure, emitter) if site.x], self.fit, self.declared
        )

    @property
    def declared(self) -> dict[str, Approximation]:
        """The user's approximations in stages, each with all parameters that stages pass it."""
        by_name: dict[str, Approximation] = {}
        for stage in self.stages:
            if isinstance(stage, Store) and (latest := stage.own) is not None:
                other = by_name.get(latest.name, latest)
                by_name[latest.name] = replace(
                    latest, grid={key: (*dict.fromkeys((*other.grid[key], *latest.grid[key])),) for key in latest.grid}
                )
        return by_name

    @cached_property
    def alone(self) -> dict[int, Otherwise]:
        """The storage of each weight in words, and the change that it alone causes on calibration rows and on held-out
        rows."""
        by_part = dict[int, Otherwise]()
        wanted = [(batch, self.reference(batch)) for batch in (self.fit, next(self.held_out.pieces(VERIFIED_ROWS)))]
        for site, method in self.methods.items():
            run = self.made({site: method}).run
            near, far = (difference(*exact.free(partial(run, batch))) for batch, exact in wanted)
            by_part.setdefault(site[0], {})[site[1:]] = describe_method(method), near, far
        return by_part

    def reference(self, batch: Batch) -> Reference:
        """Return the exact program's result on a batch, to compare others with."""
        return Reference(partial(self.exact[0].run, batch))

    # ---- the result

    @cached_property
    def program(self) -> Program:
        """The program that runs."""
        return self.made(self.methods) if self.methods else self.over_tiles(self.exact[0])

    def made(self, methods: dict[StoredSite, Method]) -> Program:
        """Return the program with some weights stored by other methods."""
        return self.over_tiles(self.emitted(methods)[0])

    def emitted(self, methods: dict[StoredSite, Method]) -> tuple[Program, Emitter]:
        """Return the program before its attention is tiled, and the emitter of its constants."""

        def decide(part: int, use: Use, method: Method) -> Method:
            """Return the method of a weight at this site, if a stage chose one."""
            return methods.get((part, use.weight, use.layout), method)

        return self.structure.program(self.meta, decide, {}, self.fitter)

    def over_tiles(self, program: Program) -> Program:
        """Return a program whose attention merges as many keys at a time as a stage sets."""
        if self.keys is None:
            return program
        steps = [
            replace(step, attributes={**step.attributes, "tile": self.keys}) if has_tiles(step.kernel) else step
            for step in program.steps
        ]
        return program.over(steps)

    def run(self, batch: Given) -> np.ndarray:
        """Return the output, (T, n): one row per token."""
        return self.program.run(batch)

    @property
    def seconds(self) -> float:
        """Predicted seconds for the batch."""
        prices, exact = Prices(self.machine, self.extents), self.structure.time
        for site, method in self.methods.items():
            n, p = self.sites[site].shape
            exact += prices.linear(method.format, n, p, method.parameters) - prices.linear("packed", n, p)
        return exact

    @property
    def bytes(self) -> float:
        """Bytes, stored and working, exactly."""
        return float(self.program.stored_bytes + self.program.peak_bytes(self.batch))

    @cached_property
    def error(self) -> float:
        """The relative change of the output, against the program without approximations, on calibration rows."""
        return difference(*self.reference(self.fit).free(lambda: self.program.run(self.fit))) if self.methods else 0.0

    def verify(self) -> dict[str, object]:
        """Verify laws, steps, then the program against the float64 oracle on held-out rows, as for a searched program.
        Returns the results. Raises VerificationError."""
        results: dict[str, object] = {"laws": verify_laws(self.laws) if self.laws else None}
        results["steps"] = self.derivation.checked
        if self.keys is not None and not (off := self.split_holds()) <= EQUAL_SPLITS:
            raise VerificationError(1, f"tile({self.keys})", "softmax over tiles differs from softmax", difference=off)
        batches = [next(self.held_out.pieces(VERIFIED_ROWS))]
        constants, wanted = unrounded(self.structure, self.emitted(self.methods)[1]), oracle(self.model, batches)
        if self.methods:
            results["structure"] = verify_structure(self.program, batches, constants, wanted, self.model)
            return results | {
                "program": verify_approximate(self.program, self.model, batches, TRUST * self.error + ROUNDED, wanted)
            }
        imported, _ = search(self.model, (), self.machine, self.extents, fusion=False, methods=plainly).program({})
        return results | {"program": verify_exact(self.program, self.model, batches, imported, constants)}

    def __str__(self) -> str:
        """Return a table of every stage with the predictions after it."""
        chain = [self]
        while chain[0].before is not None:
            chain.insert(0, chain[0].before)
        rows = [
            [one.stages[-1].name if one.stages else "imported", str(one.applications() or ""), *one.figures()]
            for one in chain
        ]
        return table(rows, ["stage", "places", "ms predicted", "MB", "error on calibration rows"])

    def figures(self) -> list[str]:
        """Return milliseconds, megabytes and error as text; "no kernel yet" if some operator has no kernel."""
        try:
            return [ms(self.seconds), megabytes(self.bytes), percent(self.error) if self.methods else ""]
        except InputError:
            return ["no kernel yet", "", ""]

    def applications(self) -> int:
        """Return the number of places where the last stage applied."""
        if not self.stages:
            return 0
        stage = self.stages[-1]
        if isinstance(stage, TileStage):
            return sum(has_tiles(step.kernel) for step in self.exact[0].steps)
        return (
            len(self.choice(stage))
            if isinstance(stage, Store)
            else sum(sum(e.counts[-1].values()) for e in self.rewritten)
        )


def choose_kernels(lowering: Lowering, each: Applied) -> Extraction:
    """Return the cheapest kernels that compute a part. Raises InputError for a term that the laws made and no kernel
    computes."""
    named, part = lowering.graph.named, each.part
    inputs = [named[name] for name in (*([part.border] if part.border else []), *part.template.entered)]
    where = f"part {each.number + 1}"
    try:
        extraction = extract(lowering.problem([named[part.roots[FULL]]], inputs, plainly), families=lowering.leaves)
    except Infeasible as error:
        raise InputError(f"no kernel computes {where}: {error}") from error
    trees: dict[Hashable, Tree] = {tree.cls: tree for tree in each.tree.walk()}
    standing = each.forest.representatives
    for node in extraction.nodes:
        if isinstance(node.cls, int) and isinstance(node.label, KernelCall) and node.label.implementation.name == READ:
            if (tree := trees.get(node.cls)) is not standing[node.cls]:
                text = TreeWriter(each.forest).text(tree or standing[node.cls])
                raise InputError(
                    f"no kernel computes {text} of {where}, the result of the laws so far: apply more laws"
                )
    return extraction


def has_tiles(kernel: str) -> bool:
    """True if a kernel passes over its contracted axis in tiles."""
    return "tile" in KERNELS[kernel].attributes


def split_axis(part: Derivation, keys: int) -> Derivation:
    """Return the derivation with one more step for each attention: its contracted axis is split."""
    kernels = part.forest.kernels
    calls = [tree for tree in part.end.walk() if tree.kind in kernels and any(map(has_tiles, kernels[tree.kind].named))]
    steps = [*part.steps]
    for tree in sorted(calls, key=lambda tree: -tree.size):
        after = part.forest.tree(tree.kind, tree.children, (*tree.attributes, f"tile={keys}"), tree.cls)
        steps.append(Application(f"tile({keys})", PARTITION, False, tree, after))
    return replace(part, steps=tuple(steps))


def schedule(
    model: str | Operator,
    batch: Batch | None = None,
    *,
    text: str | None = None,
    tokens: int | None = None,
    machine: TimeModel | None = None,
) -> HandSchedule:
    """Return a model without stages, for the workload of `optimize`; an operator needs a `batch`, on which it is then
    timed, fitted and verified. Raises InputError for wrong arguments."""
    machine = machine or this_machine()
    if isinstance(model, Operator):
        check_possible(model)
        if batch is None:
            raise InputError("schedule of an operator: give a batch to price, fit and verify it on")
        return HandSchedule(model, batch, Running.of(machine, batch.starts), batch, batch)
    checkpoint = open_model(model)
    workload = Workload.of(checkpoint, text, tokens)
    operator, timed = checkpoint.operator(), batch or workload.timed
    return HandSchedule(
        operator, timed, Running.of(machine, timed.starts), workload.probe, workload.verify, source(checkpoint)
    )
