"""Files as an attacker or a bad disk would have them: one generator of mutations, of JSON, of safetensors, of text."""

import json
from copy import deepcopy

import numpy as np

CANARY = "CANARY"  # in code: a file that it would make, where it were run
CODE = [
    f"__import__('os').system('touch {CANARY}')",
    f"__import__('pathlib').Path('{CANARY}').touch()",
    f"open('{CANARY}', 'w').close() or 8",
    f"$(touch {CANARY})",
    f"; touch {CANARY};",
    f"eval(\"open('{CANARY}', 'w')\")",
    "lambda: 0",
    "{0.__class__.__mro__}",
    "%n%s%x",
    "__class__",
    "numpy.core.multiarray._reconstruct",
    "cos\nsystem\n(S'id'\ntR.",
]
STRANGE = [
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    3,
    7,
    255,
    256,
    65536,
    2**24,
    2**31 - 1,
    2**31,
    2**32,
    2**40,
    2**63,
    -(2**63),
    2**64,
    10**9,
    10**30,
    -(10**30),
    0.5,
    -0.5,
    1e-300,
    1e-45,
    1e38,
    1e39,
    1e308,
    "",
    "0",
    "1e3",
    "x",
    "\0",
    "a\0b",
    "n" * 300,
    "é" * 50,
    "\ud800",
    "two\nlines",
    "../../etc/passwd",
    "/dev/zero",
    ".",
    "..",
    "nan",
    "F64",
    "U32",
    "BF16",
    "I8",
    "gelu",
    "tokens",
    "word",
    [],
    [[]],
    [0],
    [1, 2],
    [None],
    {},
    {"a": 1},
    {"array": 0},
    {"array": -1},
    {"over": "softmax"},
    {"over": "topk(999)"},
    {"pattern": "mask({})", "arrays": [0]},
    "(" * 900,
    "causal & " * 90 + "causal",
    "window(999999999)",
    "window(-3)",
]
RAW = [
    "[" * 100_000,
    "[" * 100_000 + "]" * 100_000,
    '{"a":' * 5000 + "1" + "}" * 5000,
    "[" * 900 + "]" * 900,
    "1" + "0" * 400,
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-0",
    "1e-999",
    '{"a": 1, "a": 2}',
    "True",
    "'x'",
    '"\\ud800"',
    '"\\u0000"',
    "01",
    "[1,]",
]
WORDS = [
    "causal",
    "sequence",
    "everyone",
    "window(3)",
    "window(-3)",
    "window(999999999)",
    "mask({})",
    " & ",
    " | ",
    "(",
    ")",
    "&",
    "often",
    "window(",
    "mask(x)",
    "\0",
]
MARKS, OTHERS = [b",", b":", b'"', b"\n", b" ", b"0"], [b"", b",", b"\0", b"\r\n", b'"']
WHOLE = [b"", b"\0", b"\xff\xfe", b"{}", b"[]", b"null", bytes(100)]
TYPES = {"F32": "<f4", "F16": "<f2", "U8": "u1", "U16": "<u2", "U32": "<u4", "F64": "<f8", "I64": "<i8", "BF16": "<u2"}


def places(value, path=()):
    """Every path into a JSON value."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield (*path, key)
        yield from places(entry, (*path, key))


def within(value, path):
    for key in path:
        value = value[key]
    return value


class Mutator:
    """Mutations drawn from one generator; `canary` is the path that code would touch."""

    def __init__(self, rng, canary):
        self.rng, self.canary = rng, str(canary)

    def pick(self, among):
        return among[int(self.rng.integers(len(among)))]

    def below(self, count):
        return int(self.rng.integers(max(1, count)))

    def code(self):
        return self.pick(CODE).replace(CANARY, self.canary)

    def pattern(self):
        return "".join(self.pick(WORDS) for _ in range(self.pick([1, 2, 3, 5, 9, 50, 200_000])))

    def value(self, old):
        """What may take the place of a value."""
        match self.below(8):
            case 0 | 1:
                return self.code()
            case 2:
                return f"@raw{self.below(len(RAW))}@"
            case 3 if isinstance(old, int | float):
                return self.pick([old + 1, old - 1, -old, old * 2, old / 2, float(old), str(old), [old]])
            case 3 if isinstance(old, str):
                return self.pick([old + "x", old[1:], old.upper(), [old], {old: old}, old * 100])
            case 4 if isinstance(old, str):
                return self.pattern()
            case _:
                return deepcopy(self.pick(STRANGE))

    def change(self, document, path):
        """One change at a path into a JSON document, which is changed in place."""
        parent, key = within(document, path[:-1]), path[-1]
        old = parent[key]
        match self.below(9):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, list):
                parent.insert(self.below(len(parent) + 1), deepcopy(old))
            case 1:
                parent[self.pick([f"{key}x", "", "n" * 300, self.code(), "a\0b"])] = old
            case 2 if isinstance(parent, dict):
                parent[self.pick([self.code(), "n" * 300, "\0", f"{key} ", *parent])] = parent.pop(key)
            case 2:
                self.rng.shuffle(parent)
            case 3:
                other = self.pick([*places(document)])
                parent[key] = deepcopy(within(document, other))
            case 4 if isinstance(old, str) and old.startswith("[["):  # a term: JSON within JSON
                inner = json.loads(old)
                self.change(inner, self.pick([*places(inner)]))
                parent[key] = self.spelt(inner)
            case _:
                parent[key] = self.value(old)

    def spelt(self, document):
        """The text of a document, with what is no JSON where it was put."""
        text = json.dumps(document)
        for k, raw in enumerate(RAW):
            text = text.replace(f'"@raw{k}@"', raw)
        return text

    def document(self, document, under=()):
        """The bytes of a JSON document after one to three changes, below a path into it."""
        changed = deepcopy(document)
        for _ in range(self.pick([1, 1, 1, 2, 3])):
            try:
                paths = [(*under, *path) for path in places(within(changed, under))]
            except (KeyError, IndexError, TypeError):
                break
            if paths:
                self.change(changed, self.pick(paths))
        return self.spelt(changed).encode("utf-8", "surrogatepass")

    def text(self, raw):
        """Bytes after damage that knows nothing of what they mean."""
        raw, at = bytearray(raw), self.below(len(raw))
        match self.below(9):
            case 0:
                del raw[at:]
            case 1:
                raw[at] ^= 1 << self.below(8)
            case 2:
                raw[at:at] = self.rng.bytes(self.pick([1, 4, 100]))
            case 3:
                del raw[at : at + self.pick([1, 10, 1000])]
            case 4:
                raw = bytearray(self.pick([*WHOLE, b"\xef\xbb\xbf" + raw]))
            case 5:
                raw[at:at] = self.pick([*RAW, *CODE]).replace(CANARY, self.canary).encode()
            case 6:
                raw += raw[:at]
            case 7:
                raw[at : at + 8] = self.pick([bytes(8), b"\xff" * 8])
            case _:
                raw = raw.replace(self.pick(MARKS), self.pick(OTHERS), 1 + self.below(3))
        return bytes(raw)

    # ---- safetensors

    def header(self, raw):
        """A safetensors file whose header says something else."""
        length = int.from_bytes(raw[:8], "little")
        said = self.document(json.loads(raw[8 : 8 + length]))
        claimed = len(said) if self.below(4) else self.pick([0, 1, length, 2**20, 2**40, 2**63, 2**64 - 1])
        return claimed.to_bytes(8, "little") + said + raw[8 + length :]

    def body(self, raw):
        """One whose arrays hold something else."""
        length = int.from_bytes(raw[:8], "little")
        entries = [(e["dtype"], *e["data_offsets"]) for e in json.loads(raw[8 : 8 + length]).values()]
        (kind, low, high), raw, start = self.pick(entries), bytearray(raw), 8 + length
        same = [entry for entry in entries if entry[2] - entry[1] == high - low]
        numbers = np.frombuffer(memoryview(raw)[start + low : start + high], TYPES[kind])
        at = self.below(len(numbers))
        strange = (
            [np.nan, np.inf, -np.inf, 0, 1e4, -1e-5]
            if kind[0] == "F"
            else [0, 1, 3, 16, 63, 255, 65535, 2**31, 2**32 - 1]
        )
        if len(numbers):
            value = np.array(self.pick(strange)).astype(numbers.dtype, casting="unsafe")
            match self.below(9):
                case 0:
                    numbers[at] = value
                case 1:
                    numbers[at:] = value
                case 2:
                    numbers[...] = value
                case 3:
                    numbers[...] = numbers[::-1].copy()
                case 4:
                    numbers[at] = numbers[at] + numbers.dtype.type(1)
                case 5:
                    self.rng.shuffle(numbers)
                case 6:
                    numbers[...] = np.frombuffer(raw, numbers.dtype, len(numbers), start + self.pick(same)[1]).copy()
                case 7:
                    raw[start + low + self.below(high - low)] ^= 1 << self.below(8)
                case _:
                    return self.text(bytes(raw))
        return bytes(raw)
