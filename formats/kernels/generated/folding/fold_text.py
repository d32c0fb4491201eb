"""The text of a kernel that computes a product over a monoid: Python over vectors of 16 queries.

An item is 64 queries of a head of a sequence, and up to 192 columns. Keys are processed in tiles of 64, in order. A
line holds a number for each of the queries: the scores of a key, or the parts of a merge that depend on scores alone.
Carriers of a few columns stay in registers while a tile is processed. Sizes above 8 are words of the record."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from formats.kernels.generated.folding.fold_order import told_by
from formats.kernels.generated.folding.fold_plan import OF_ARRAY, Folding, FoldOperand, FoldPlan, MergeStep, ScoreLeaf
from formats.kernels.generated.folding.fold_sizes import CHUNK_COLUMNS, SCORE_BYTES, UNIT_SIDE
from formats.kernels.generated.rowwise.scalars import NumberGraph, StandIn
from formats.kernels.generated.rowwise.stored import StoredColumns
from formats.kernels.generated.rowwise.vector_text import IN_TEXT, VectorText
from formats.kernels.simd.vectors import MANY_REGISTERS

ABREAST_CARRIERS = 4  # carriers of columns that are in registers at a time
ORDERED_CARRIERS = 8 if MANY_REGISTERS else 4  # for merges so short that each waits for the last
MASKED_COLUMNS = 2  # columns at a time where some keys are not seen
SCORED_KEYS = 4  # keys whose scores are merged at a time
FIXED_WORDS = ("out out_row out_head starts S heads chunks keys behind ahead ptr idx edge bits room apart p").split()


def abreast(carriers: int, columns: int, most: int = ABREAST_CARRIERS) -> int:
    """Return the number of columns merged at a time, for this many carriers a column: a power of two, as `most` is."""
    return max(1, min(most // max(carriers, 1), 1 << (columns - 1).bit_length()))


@dataclass
class FoldText(VectorText):
    """Text of a kernel, and the places of its lines in the scratch of a worker."""

    plan: FoldPlan
    places: dict[str, int] = field(default_factory=dict)  # bytes of scratch by the words of the text
    indent: int = field(default=1, kw_only=True)
    room: int = 0

    def __post_init__(self) -> None:
        plan = self.plan
        self.step = MergeStep(plan.folding, plan.sole)
        self.scored = not plan.fixed and any(node is self.step.score for node in self.step.handed)
        self.told = told_by(self.step, self.scored)
        self.columns = min(plan.right.cols, CHUNK_COLUMNS)
        self.many = self.columns_abreast(True, bool(self.told))
        self.across = 64 * (-(-self.columns // 16) | 1)  # an odd number of lines, so rows do not collide in caches
        self.line = self.size(self.across)
        self.begin()
        self.within("for b in range(at, last):", self.write_tile)
        self.finish()

    # ---- where things are

    def reserve(self, word: str, size: int) -> str:
        """Reserve `size` bytes of scratch under a word, and return the word."""
        self.places[word] = self.room
        self.room += -(-size // 64) * 64
        return word

    def address(self, operand: FoldOperand, row: str, at: str = "0") -> str:
        """Return the address of the number at a row and a column of the item's head."""
        word, cols = operand.word, self.size(operand.cols)
        if operand.kind == OF_ARRAY:
            head = f"head * c.{word}_head + " if operand.heads > 1 else ""
            return f"c.{word} + 4 * ({head}({row}) * {cols} + {at})"
        return f"c.{word} + 4 * (({row}) * c.{word}_row + head // c.{word}_of * c.{word}_head + {at})"

    def vectors(self, body: Callable[[], None]) -> None:
        """Write a body once for each 16 of the queries, which begin at g."""
        self.within("for g in range(0, wide, 64):", body)

    # ---- before the tiles

    def begin(self) -> None:
        """Write the beginning of an item: its sizes, its operands transposed, and empty carriers."""
        plan = self.plan
        self.put(f"part, head = item % c.chunks * {CHUNK_COLUMNS}, item // c.chunks % c.heads")
        self.put("start, length, low = unit_at(c.starts, c.S, item // (c.chunks * c.heads))")
        self.put("if low < 0: return")
        self.put(f"rows, p = min({UNIT_SIDE}, length - low), {self.columns_word()}")
        self.put("wide = (rows + 15) // 16 * 64")
        self.begin_scores()
        self.begin_carriers()
        if plan.masked:
            self.put("at, last = tiles_seen(c, low, rows, length)")
        else:
            self.put(f"at, last = 0, (c.keys + {UNIT_SIDE - 1}) // {UNIT_SIDE}")

    def begin_scores(self) -> None:
        """Transpose the operands of scores whose rows are the queries', and reserve lines for scores."""
        plan = self.plan
        for number, leaf in enumerate(plan.leaves):
            match leaf.kind:
                case "pairs":
                    depth = leaf.left.cols
                    self.reserve(f"turned{number}", -(-depth // 16) * 16 * SCORE_BYTES)
                    self.reserve(f"line{number}", UNIT_SIDE * SCORE_BYTES)
                    self.turn_rows(leaf.left, "0", self.size(depth), f"turned{number}")
                case "row":
                    self.reserve(f"line{number}", UNIT_SIDE * SCORE_BYTES)
                case "distance":
                    self.reserve(f"strip{number}", 2 * SCORE_BYTES)
                case "query":
                    self.reserve(f"line{number}", SCORE_BYTES)
                    self.turn_rows(leaf.left, "0", "1", f"line{number}")
        if plan.sole is not None:
            pass
        elif plan.fixed:
            self.write_fixed()
        elif self.lone_leaf() is None:
            self.reserve("scores", UNIT_SIDE * SCORE_BYTES)
        if plan.masked:
            self.reserve("seen", UNIT_SIDE * SCORE_BYTES)

    def begin_carriers(self) -> None:
        """Write empty carriers, for as many columns as are merged at a time; numbers behind the last column are 0."""
        step, units = self.step, self.plan.folding.unit
        columns = -(-self.columns // self.many) * self.many
        self.reserve("packed", UNIT_SIDE * self.across)
        for k in range(len(step.stored)):
            self.reserve(f"handed{k}", UNIT_SIDE * SCORE_BYTES)
        for k in range(len(units)):
            self.reserve(f"held{k}", (1 if k in step.by_score else columns) * SCORE_BYTES)

        def clear(places: Sequence[int], at: str) -> Callable[[], None]:
            def lines() -> None:
                for k in places:
                    self.put(f"keep({self.unit_vector(units[k])}, held{k} + {at}g, None)")

            return lambda: self.vectors(lines)

        if step.by_score:
            clear(step.by_score, "")()
        if step.by_factor:
            self.put(f"across = (p + {self.many - 1}) // {self.many} * {self.many}")
            self.within("for n in range(across):", clear(step.by_factor, f"n * {SCORE_BYTES} + "))
            self.within(
                f"for j in range({UNIT_SIDE}):",
                lambda: self.put(f"clear_numbers(packed + {self.line} * j + 4 * p, across - p)"),
            )
        if self.plain_part() is None:
            self.reserve("found", -(-self.columns * self.plan.folding.width // 16) * 16 * SCORE_BYTES)
        if self.told:
            self.put("fine = True")

    def turn_rows(self, operand: FoldOperand, first: str, count: str, lines: str) -> None:
        """Write the transpose of the rows of the queries: a line for each column."""
        self.put(
            f"turn_keys({self.address(operand, 'start + low', first)}, 4 * c.{operand.word}_row, rows, {count}, "
            f"{lines}, {SCORE_BYTES})"
        )

    def write_fixed(self) -> None:
        [score] = self.graph(self.plan.score, [self.leaf_vector(k) for k in range(len(self.plan.leaves))])
        self.put(f"score = {self.vector(score)}")

    def columns_word(self) -> str:
        cols = self.plan.right.cols
        return str(cols) if cols <= IN_TEXT else f"min({CHUNK_COLUMNS}, c.p - part)"

    def unit_vector(self, value: float) -> str:
        return f"in_all_lanes({self.literal(value)})"

    # ---- a tile

    def write_tile(self) -> None:
        """Write the scores of a tile of keys, and their merge into the carriers."""
        if self.plan.masked:
            self.put("key, keys, whole = tile_seen(c, b, low, rows, length, seen)")
            self.put("base = start + key")
        else:
            self.put(f"key = {UNIT_SIDE} * b")
            self.put(f"keys, base = min({UNIT_SIDE}, c.keys - key), key")
        for number, leaf in enumerate(self.plan.leaves):
            self.write_leaf(number, leaf)
        if "scores" in self.places:
            self.write_scores()
        step = self.step
        if step.by_score or step.stored:
            self.write_by_score(not self.plan.masked)
        if step.by_factor:
            right = self.plan.right
            row = "4 * " + (self.size(right.cols) if right.kind == OF_ARRAY else f"c.{right.word}_row")
            source = "key" if right.kind == OF_ARRAY else "base"
            self.put(f"copy_rows({self.address(right, source, 'part')}, {row}, keys, p, packed, {self.line})")
            if self.told:
                self.write_told(self.told)
            self.parted(self.write_by_factor)

    def write_told(self, told: str) -> None:
        """Write the test that no compared number is NaN, in this tile and those before."""
        self.put(f"above, below = within_infinity(packed, keys, p, {self.line})")
        if self.scored:
            self.put(f"higher, lower = within_infinity({self.score_lines()}, keys, rows, {SCORE_BYTES})")
            self.put("above, below = above and higher, below and lower")
        self.put(f"fine = fine and ({told})")

    def parted(self, body: Callable[[bool], None]) -> None:
        """Write a body for tiles that are seen completely, and if there is a mask another body for the other tiles."""
        if not self.plan.masked:
            return self.ordered_first(body)
        self.within("if whole:", lambda: self.ordered_first(body))
        return self.within("else:", lambda: body(False))

    def ordered_first(self, body: Callable[[bool], None]) -> None:
        """Write a body for tiles in which no compared number is NaN, if the text tests for that, and another for other
        tiles."""
        if not self.told:
            return body(True)
        self.ordered = True
        self.within("if fine:", lambda: body(True))
        self.ordered = False
        return self.within("else:", lambda: body(True))

    def write_leaf(self, number: int, leaf: ScoreLeaf) -> None:
        """Write the lines of one leaf of the scores."""
        if leaf.kind == "row":
            self.turn_rows(leaf.left, "key", "keys", f"line{number}")
        if leaf.kind == "distance":
            most, table = self.size(leaf.left.cols // 2), f"c.{leaf.left.word} + 4 * head * c.{leaf.left.word}_head"
            self.put(f"lay_strip({table}, {most}, low - key - keys + 1, keys + wide // 4 - 1, f4(1), strip{number})")
            self.put(f"line{number} = strip{number} + 4 * (keys - 1)")
        if leaf.kind != "pairs":
            return
        assert leaf.right is not None and leaf.inner is not None
        right, step = leaf.right, MergeStep(leaf.inner)
        many = abreast(len(step.folding.unit), SCORED_KEYS)

        def group() -> None:
            for k in range(many):
                self.put(f"j{k} = " + ("j" if k == 0 else f"min(j + {k}, keys - 1)"))
                self.put(f"y{k} = {self.address(right, f'base + j{k}')}")
            self.vectors(lambda: self.merge_pairs(number, step, many, leaf.left.cols))

        self.within(f"for j in range(0, keys, {many}):", group)

    def merge_pairs(self, number: int, step: MergeStep, many: int, depth: int) -> None:
        """Write the scores of a few keys and 16 queries: columns merged one after another."""
        units = step.folding.unit
        for k in range(many):
            for part, unit in enumerate(units):
                self.put(f"a{k}_{part} = {self.unit_vector(unit)}")

        def column() -> None:
            score = self.name(f"get(turned{number} + {SCORE_BYTES} * i + g, None)")
            for k in range(many):
                factor = self.name(f"one_number(y{k} + 4 * i)")
                held = {id(carrier): f"a{k}_{part}" for part, carrier in enumerate(step.carriers)}
                held |= {id(step.score): score, id(step.factor): factor}
                if id(step.index) in {id(node) for node in NumberGraph(0, tuple(step.merged)).walk()}:
                    held[id(step.index)] = self.name("in_all_lanes(f4(i))")
                self.assign(
                    [f"a{k}_{part}" for part in range(len(units))], [*map(self.vector, self.emit(step.merged, held))]
                )

        self.within(f"for i in range({self.size(depth)}):", column)
        for k in range(many):
            [score] = self.graph(step.folding.finish, [f"a{k}_{part}" for part in range(len(units))])
            self.put(f"keep({self.vector(score)}, line{number} + {SCORE_BYTES} * j{k} + g, None)")

    def lone_leaf(self) -> int | None:
        """Return the number of the leaf that is the score itself, if it has lines; else None."""
        [score] = self.plan.score.outputs
        lined = score.op == "input" and self.plan.leaves[int(score.value)].kind in ("pairs", "row")
        return int(score.value) if lined else None

    def score_lines(self) -> str:
        """Return the word of the lines of scores."""
        return "scores" if (lone := self.lone_leaf()) is None else f"line{lone}"

    def leaf_vector(self, number: int) -> str:
        """Return the variable of a leaf's values at key j, for 16 queries."""
        leaf = self.plan.leaves[number]
        match leaf.kind:
            case "query":
                return self.name(f"get(line{number} + g, None)")
            case "distance":
                return self.name(f"get(line{number} - 4 * j + g, None)")
            case "key":
                return self.name(f"one_number({self.address(leaf.left, 'base + j')})")
            case "head":
                head = "head" if leaf.left.heads > 1 else "0"
                return self.name(f"one_number(c.{leaf.left.word} + 4 * {head})")
        return self.name(f"get(line{number} + {SCORE_BYTES} * j + g, None)")

    def write_scores(self) -> None:
        """Write the scores, computed from their leaves."""

        def one() -> None:
            [score] = self.graph(self.plan.score, [self.leaf_vector(k) for k in range(len(self.plan.leaves))])
            self.put(f"keep({self.vector(score)}, scores + {SCORE_BYTES} * j + g, None)")

        self.within("for j in range(keys):", lambda: self.vectors(one))

    # ---- merging

    def inputs(self, carriers: dict[int, str], wanted: Sequence[StandIn]) -> dict[int, str]:
        """Return the variables of a pair at key j that are wanted: carriers, the score and the index."""
        step, held = self.step, {id(self.step.carriers[k]): name for k, name in carriers.items()}
        needed = {id(node) for node in NumberGraph(0, tuple(wanted)).walk()}
        if id(step.score) in needed and step.score.op == "input":
            held[id(step.score)] = (
                "score" if self.plan.fixed else self.name(f"get({self.score_lines()} + {SCORE_BYTES} * j + g, None)")
            )
        if id(step.index) in needed:
            held[id(step.index)] = self.name("in_all_lanes(f4(base + j))")
        return held

    def columns_abreast(self, whole: bool, ordered: bool) -> int:
        """Return the number of columns merged at a time."""
        most = (ORDERED_CARRIERS if ordered else ABREAST_CARRIERS) if whole else MASKED_COLUMNS
        return abreast(len(self.step.by_factor), self.plan.right.cols, most)

    def select(self, found: str, before: str, whole: bool) -> str:
        """Return the merged number where the key is seen, else the number before."""
        return found if whole else self.name(f"lanes_of(mask, {found}, {before})")

    def every_key(self) -> str:
        """Return a loop over the keys of a tile that some of 16 queries see."""
        if not self.plan.masked:
            return "for j in range(keys):"
        self.put("first, past = keys_seen(c, low + g // 4, key, keys)")
        return "for j in range(first, past):"

    def read_mask(self, whole: bool) -> None:
        if not whole:
            self.put(f"mask = get(seen + {SCORE_BYTES} * j + g, None)")

    def write_by_score(self, whole: bool) -> None:
        """Write the carriers of scores alone, and store the parts of a merge that columns need, key by key."""
        step = self.step

        def keys() -> None:
            self.read_mask(whole)
            ends = [*(step.merged[k] for k in step.by_score), *step.stored]
            held = self.inputs({k: f"a{k}" for k in step.by_score}, ends)
            merged = [*map(self.vector, self.emit(ends, held))]
            for k, value in enumerate(merged[len(step.by_score) :]):
                self.put(f"keep({value}, handed{k} + {SCORE_BYTES} * j + g, None)")
            fresh = [self.select(value, f"a{k}", whole) for k, value in zip(step.by_score, merged, strict=False)]
            self.assign([f"a{k}" for k in step.by_score], fresh)

        def group() -> None:
            for k in step.by_score:
                self.put(f"a{k} = get(held{k} + g, None)")
            self.within(self.every_key(), keys)
            for k in step.by_score:
                self.put(f"keep(a{k}, held{k} + g, None)")

        self.vectors(group)

    def write_by_factor(self, whole: bool) -> None:
        """Write the merge of a few columns, whose carriers stay in registers for a whole tile."""
        step = self.step
        many = self.columns_abreast(whole, self.ordered)
        names = [[f"a{n}_{k}" for k in step.by_factor] for n in range(many)]

        def keys() -> None:
            self.read_mask(whole)
            self.put(f"y = packed + {self.line} * j + 4 * n")
            shared = self.inputs({}, [node for node in step.handed if node is step.score or node is step.index])
            for k, node in enumerate(step.stored):
                shared[id(node)] = self.name(f"get(handed{k} + {SCORE_BYTES} * j + g, None)")
            for n in range(many):
                held = shared | {id(step.carriers[k]): name for k, name in zip(step.by_factor, names[n], strict=True)}
                held[id(step.factor)] = self.name(f"one_number(y + {4 * n})")
                merged = [*map(self.vector, self.emit([step.merged[k] for k in step.by_factor], held))]
                self.assign(
                    names[n], [self.select(value, name, whole) for value, name in zip(merged, names[n], strict=True)]
                )

        def group() -> None:
            for k in step.by_factor:
                self.put(f"h{k} = held{k} + {SCORE_BYTES} * n + g")
            for n in range(many):
                for k in step.by_factor:
                    self.put(f"a{n}_{k} = get(h{k} + {SCORE_BYTES * n}, None)")
            self.within(self.every_key(), keys)
            for n in range(many):
                for k in step.by_factor:
                    self.put(f"keep(a{n}_{k}, h{k} + {SCORE_BYTES * n}, None)")

        self.within(f"for n in range(0, p, {many}):", lambda: self.vectors(group))

    # ---- behind the tiles

    def plain_part(self) -> int | None:
        """Return the part of a carrier that is the result as it is, if `finish` changes nothing and columns differ in
        it."""
        [result, *more] = self.plan.folding.finish.outputs
        plain = not more and result.op == "input" and int(result.value) in self.step.by_factor
        return int(result.value) if plain else None

    def finish(self) -> None:
        """Write the finished result, transposed to rows."""
        folding = self.plan.folding
        width = folding.width

        source = self.plain_part()

        def one() -> None:
            carriers = [
                self.name(
                    f"get(held{k} + g, None)"
                    if k in self.step.by_score
                    else f"get(held{k} + {SCORE_BYTES} * n + g, None)"
                )
                for k in range(len(folding.unit))
            ]
            for k, value in enumerate(self.graph(folding.finish, carriers)):
                self.put(f"keep({self.vector(value)}, found + {SCORE_BYTES} * (n * {width} + {k}) + g, None)")
                self.stores.add("out", StoredColumns(1, k, k + 1))

        if source is None:
            self.within("for n in range(p):", lambda: self.vectors(one))
        else:
            self.stores.add("out", StoredColumns(1, 0, 1))
        self.stores.check("out", 1, width)  # `width` numbers for each column
        self.put(f"out = c.out + 4 * ((start + low) * c.out_row + head * c.out_head + part * {width})")
        lines = "found" if source is None else f"held{source}"
        self.put(f"turn_keys({lines}, {SCORE_BYTES}, p * {width}, rows, out, 4 * c.out_row)")

    # ---- the whole

    @property
    def fields(self) -> list[str]:
        """The words of a call's record, in order."""
        return [*self.plan.words, *FIXED_WORDS, *self.sizes.values(), *(f"at_{word}" for word in self.places)]

    def whole(self) -> str:
        """Return the whole text."""
        sizes = [f"    {name} = c.{name}" for name in self.sizes.values()]
        rooms = [f"    {word} = c.room + worker * c.apart + c.at_{word}" for word in self.places]
        return self.framed("fold_of_term", self.fields, [*sizes, *rooms, *self.lines])


def count_pairs(folding: Folding) -> tuple[float, float]:
    """Count simple and slow operations of merging one more pair."""
    by_score, by_number = MergeStep(folding).work
    return by_score[0] + by_number[0], by_score[1] + by_number[1]
