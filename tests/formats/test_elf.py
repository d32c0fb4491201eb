"""Object code is brought into memory only where all that it says holds together; anything else is refused in a line."""

import ctypes
import random
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_compiling import SQUARE, done, run

from formats.core.errors import InputError
from formats.kernels.attentions import attending
from formats.kernels.engine import elf, objects, processor
from formats.kernels.engine.compiled import FUNCTIONS, provide
from tests.support.numba_kernel import listed

pytestmark = pytest.mark.skipif(not elf.HERE, reason="LLVM loads object code here")
BASE = 0x7F12_3456_7000
NAMES = "square", listed.name, attending.attend.name  # small; with what is written to; with constants and calls of C's
SECTION, SYMBOL = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")
WIDTHS = {1: 8, 2: 4, 4: 4, 10: 4, 11: 4, 24: 8}  # bytes that relocations write, of the table of the ABI
FIELDS = "name kind flags address offset size link info align each".split()


@pytest.fixture(scope="module", params=NAMES)
def code(request):
    """(code, name, what it needs from outside) of a kernel."""
    return stored(request.param)


def stored(name):
    provide([FUNCTIONS[name]])
    code, _, absent = objects.read_code(FUNCTIONS[name].symbol).rpartition(b"\n")
    return code, FUNCTIONS[name].symbol, {each: 0x7F00_0000_0000 for each in (*objects.BASIC, *absent.decode().split())}


def linked(code, name, outside):
    """Its image; whatever is wrong with that is an assertion."""
    found = elf.Object(code)
    entry, image = found.entry(name), found.image(BASE, outside)
    begin, end, rights = found.spans[0]
    assert len(image) == found.size <= elf.MAX_OBJECT_BYTES and rights == elf.EXECUTED and begin <= entry < end
    assert all(end <= begin for (_, end, _), (begin, _, _) in zip(found.spans, found.spans[1:], strict=False))
    assert all(start + found.sections[i].size <= found.size for i, start in found.starts.items())
    for table in found.sections:
        if table.kind == elf.ADDENDS and table.info in found.starts:
            for offset, info, _ in elf.RELA.iter_unpack(code[table.offset : table.offset + table.size]):
                assert offset + WIDTHS[info & 0xFFFFFFFF] <= found.sections[table.info].size
    return image


def refused(code, name, outside):
    """Why it is refused, in a line; nothing where it is not."""
    try:
        linked(code, name, outside)
    except InputError as error:
        assert "\n" not in str(error)
        return str(error)


# ---- what is right


def test_an_image_is_its_sections_with_addresses_written_in(code):
    """Whatever no relocation names stands there as in the file, and each address is that of its symbol."""
    found, image = elf.Object(code[0]), linked(*code)
    elsewhere = found.image(BASE + (1 << 20), code[2])
    differ = [i for i in range(found.size) if image[i] != elsewhere[i]]
    fields = set()
    for table in found.sections:
        if table.kind == elf.ADDENDS and table.info in found.starts:
            for offset, info, addend in elf.unpack_entries(code[0], table, elf.RELA):
                assert info & 0xFFFFFFFF == 1, "LLVM writes whole addresses"
                place, symbol = found.starts[table.info] + offset, found.symbols[info >> 32]
                fields |= set(range(place, place + 8))
                wanted = (
                    code[2][found.name(symbol)]
                    if not symbol.section
                    else BASE + found.starts[symbol.section] + symbol.value
                )
                assert int.from_bytes(image[place : place + 8], "little") == wanted + addend
    assert set(differ) <= fields
    for i, start in found.starts.items():
        each = found.sections[i]
        given = elf.content(code[0], each) if each.kind == elf.PROGBITS else bytes(each.size)
        assert all(image[start + k] == given[k] for k in range(each.size) if start + k not in fields)


def test_memory_is_run_or_written_to_never_both():
    code = f"""
import ctypes, sys
{SQUARE}
place = FUNCTIONS["square"].place
from formats.kernels.engine.compiled import provide
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.support.numba_kernel import listed                        # which has what is written to
provide([listed])
lines = [line.split()[:2] for line in open("/proc/self/maps")]
rights = next(r for where, r in lines if int(where.split("-")[0], 16) <= place < int(where.split("-")[1], 16))
print(rights, any("w" in r and "x" in r for _, r in lines), "llvmlite" in sys.modules)
"""
    run(SQUARE)
    assert run(code)[2:] == ["r-xp", "False", "False"]


BY_LLVM = {
    "elsewhere": "elf.HERE = False",
    "no memory may be run": """
def refuse(*_): raise elf.Foreign("no")
elf.protect = refuse""",
}


@pytest.mark.parametrize("way", BY_LLVM)
def test_llvm_loads_what_is_not_placed_here(way):
    run(SQUARE)
    by_llvm = f"from formats.kernels.engine import elf\n{BY_LLVM[way]}\n{SQUARE}\nprint('llvmlite' in sys.modules)"
    assert run(by_llvm)[::2] == ["found", "True"]


def made(text, model):
    """What LLVM makes of its language, addresses as near as a model says."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple().create_target_machine(codemodel="small", reloc=model)
    return target.emit_object(llvm.parse_assembly(text))


TABLE = """
@table = internal constant [3 x i64] [i64 5, i64 7, i64 11]
define i64 @chosen(i64 %i) {
  %at = getelementptr [3 x i64], ptr @table, i64 0, i64 %i
  %found = load i64, ptr %at
  ret i64 %found
}"""


def test_near_addresses_fit_or_are_refused():
    address = elf.load_object(made(TABLE, "pic"), "chosen", {})
    assert [ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(i) for i in range(3)] == [5, 7, 11]
    with pytest.raises(elf.Foreign, match="too far away"):
        elf.load_object(made(TABLE, "static"), "chosen", {})


# ---- what is wrong


def changed(code, at, form, **fields):
    """The entry at a place with other fields."""
    names = FIELDS if form is SECTION else "name kind other section value size".split()
    old = dict(zip(names, form.unpack_from(code, at), strict=True))
    new = {name: value(old[name]) if callable(value := fields.get(name, old[name])) else value for name in names}
    return code[:at] + form.pack(*new.values()) + code[at + form.size :]


def table(code, wanted, **fields):
    """The object with another entry of the first section that is wanted."""
    (start,) = struct.unpack_from("<Q", code, 40)
    i = next(i for i, each in enumerate(elf.sections(code)) if wanted(each))
    return changed(code, start + i * SECTION.size, SECTION, **fields)


def symbol(code, wanted, **fields):
    tab = next(each for each in elf.sections(code) if each.kind == elf.SYMTAB)
    found = elf.Object(code)
    i = next(i for i, each in enumerate(found.symbols) if wanted(found, each))
    return changed(code, tab.offset + i * SYMBOL.size, SYMBOL, **fields)


def relocation(code, **fields):
    """The object whose first relocation of code is another one."""
    found = next(
        each
        for each in elf.sections(code)
        if each.kind == elf.ADDENDS and elf.sections(code)[each.info].rights == elf.EXECUTED
    )
    offset, info, addend = elf.RELA.unpack_from(code, found.offset)
    info = fields.get("number", info >> 32) << 32 | fields.get("kind", info & 0xFFFFFFFF)
    return (
        code[: found.offset]
        + elf.RELA.pack(fields.get("offset", offset), info, fields.get("addend", addend))
        + code[found.offset + 24 :]
    )


def text(each):
    return each.rights == elf.EXECUTED and each.size


def own(found, each):
    return each.section and found.name(each).startswith("listed-")


def patch(code, at, new):
    return code[:at] + new + code[at + len(new) :]


WRONG = {
    "nothing": (lambda c: b"", "ends within its header"),
    "32 bits": (lambda c: patch(c, 4, b"\1"), "no relocatable ELF"),
    "big endian": (lambda c: patch(c, 5, b"\2"), "no relocatable ELF"),
    "arm64": (lambda c: patch(c, 18, b"\xb7\0"), "no relocatable ELF"),
    "a library": (lambda c: patch(c, 16, b"\3\0"), "no relocatable ELF"),
    "cut": (lambda c: c[:-1], "table of sections lies outside"),
    "more sections": (lambda c: patch(c, 60, b"\xff\xff"), "table of sections lies outside"),
    "larger entries": (lambda c: patch(c, 58, b"\x48\0"), "table of sections lies outside"),
    "a section beyond": (lambda c: table(c, text, offset=len(c)), "a section lies outside"),
    "a long section": (lambda c: table(c, text, size=1 << 63), "sections overlap"),
    "a section over another": (lambda c: table(c, text, offset=lambda o: o + 64), "sections overlap"),
    "a section over the header": (lambda c: table(c, text, offset=0), "sections overlap"),
    "written and run": (lambda c: table(c, text, flags=7), "Foreign: a section that is both writable and executable"),
    "thread's own": (lambda c: table(c, text, flags=0x406), "Foreign: a section of unknown type"),
    "run before": (lambda c: table(c, text, kind=14), "Foreign: a section of unknown type 0xe"),
    "odd multiples": (lambda c: table(c, text, align=24), "Foreign: a section aligned to 24"),
    "large multiples": (lambda c: table(c, text, align=1 << 40), "Foreign: a section aligned to"),
    "much room": (lambda c: table(c, lambda s: s.kind == elf.NOBITS, size=1 << 62), "a section takes"),
    "too much room": (
        lambda c: table(c, lambda s: s.kind == elf.NOBITS, size=elf.MAX_OBJECT_BYTES),
        "its sections take",
    ),
    "no symbols": (lambda c: table(c, lambda s: s.kind == elf.SYMTAB, kind=7), "0 symbol tables"),
    "symbols without names": (
        lambda c: table(c, lambda s: s.kind == elf.SYMTAB, link=3),
        "symbol table has no string table",
    ),
    "names beyond": (lambda c: table(c, lambda s: s.kind == elf.SYMTAB, link=99), "symbol table has no string table"),
    "odd symbols": (
        lambda c: table(c, lambda s: s.kind == elf.SYMTAB, each=16),
        "the entries of a table have an unexpected size",
    ),
    "half a symbol": (
        lambda c: table(c, lambda s: s.kind == elf.SYMTAB, size=lambda s: s - 1),
        "the entries of a table have an unexpected size",
    ),
    "odd relocations": (
        lambda c: table(c, lambda s: s.kind == elf.ADDENDS, each=16),
        "the entries of a table have an unexpected size",
    ),
    "no addends": (
        lambda c: table(c, lambda s: s.kind == elf.ADDENDS, kind=9),
        "Foreign: it has relocations without addends",
    ),
    "an unknown relocation": (lambda c: relocation(c, kind=9), "Foreign: relocation of unknown type 9"),
    "one beyond its section": (lambda c: relocation(c, offset=1 << 62), "a relocation lies outside"),
    "one across its end": (
        lambda c: relocation(c, offset=next(filter(text, elf.sections(c))).size - 7),
        "a relocation lies outside",
    ),
    "one of no symbol": (lambda c: relocation(c, number=0), "no symbol 0"),
    "one of none there is": (lambda c: relocation(c, number=1 << 20), "no symbol 1048576"),
    "one that is far": (
        lambda c: relocation(c, kind=2, addend=1 << 40),
        "Foreign: relocation of type 2: its target is too far",
    ),
    "one below nothing": (
        lambda c: relocation(c, addend=-1 << 62),
        "Foreign: relocation of type 1: its target is too far",
    ),
    "a function beyond": (lambda c: symbol(c, own, value=1 << 40), "defines no function listed"),
    "data beyond": (
        lambda c: symbol(c, lambda o, s: s.kind == 3 and text(o.sections[s.section]), value=1 << 40),
        "a symbol lies outside",
    ),
    "data that is not there": (
        lambda c: symbol(c, lambda o, s: s.kind == 3 and text(o.sections[s.section]), section=0xFFF1),
        "Foreign: symbol ''",
    ),
    "a function of data": (
        lambda c: symbol(
            c, own, section=lambda _: next(i for i, s in enumerate(elf.sections(c)) if s.kind == elf.NOBITS)
        ),
        "defines no function listed",
    ),
    "no function": (lambda c: symbol(c, own, kind=0x11), "defines no function listed"),
    "of no section": (lambda c: symbol(c, own, section=0x7000), "a symbol refers to a section that does not exist"),
    "an absolute function": (lambda c: symbol(c, own, section=0xFFF1), "defines no function listed"),
    "a function at the end": (
        lambda c: symbol(c, own, value=next(filter(text, elf.sections(c))).size),
        "defines no function listed",
    ),
    "a name beyond": (lambda c: symbol(c, own, name=1 << 30), "name of a symbol is not terminated"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_contradicts_itself_is_refused(what):
    code, name, outside = stored("listed")
    change, why = WRONG[what]
    with pytest.raises(InputError) as caught:
        linked(change(code), name, outside)
    said = f"{'Foreign: ' * isinstance(caught.value, elf.Foreign)}{caught.value}"
    assert why in said and "\n" not in said


def test_what_is_not_defined_is_refused():
    code, name, _ = stored("listed")
    with pytest.raises(elf.Foreign, match="symbol 'NRT_"):
        linked(code, name, {})


def test_what_is_refused_is_compiled_again(tmp_path):
    """Its checksum is right, so that only what it says is wrong; it is said in a line."""
    key = run(SQUARE, OPMATRIX_CACHE=str(tmp_path))[1]
    (file,) = tmp_path.rglob("square-*.o")
    code, _, absent = objects.read_intact(file).rpartition(b"\n")
    objects.write_code(file.parent, file.stem, patch(code, 18, b"\xb7\0"), absent.decode().split())
    found = done(SQUARE, OPMATRIX_CACHE=str(tmp_path))
    assert found.stdout.split() == ["compiled", key]
    assert found.stderr == f"opmatrix: compiled again: {file}: it is no relocatable ELF file of x86-64\n"
    assert run(SQUARE, OPMATRIX_CACHE=str(tmp_path)) == ["found", key]


# ---- anything at all

EDGES = [
    0,
    1,
    2,
    3,
    7,
    8,
    24,
    63,
    64,
    255,
    4096,
    0xFF00,
    0xFFF1,
    0xFFFF,
    1 << 31,
    (1 << 32) - 1,
    1 << 62,
    (1 << 63) - 1,
    (1 << 64) - 1,
]


def mutants(code, count, seed):
    """Objects with some bytes changed, fields of tables at their edges, ends cut, parts moved."""
    rng = random.Random(seed)
    (start,) = struct.unpack_from("<Q", code, 40)
    tables = [
        range(64),
        range(start, len(code)),
        *(
            range(each.offset, each.offset + each.size)
            for each in elf.sections(code)
            if each.kind in (elf.SYMTAB, elf.ADDENDS)
        ),
    ]
    edges = [*EDGES, len(code), start, *(abs(each.size - less) for each in elf.sections(code) for less in (0, 1, 7))]
    for _ in range(count):
        found = bytearray(code)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            way, at = rng.choice((0, 1, 2, 2, 2, 2, 3, 4)), rng.choice(rng.choice(tables))
            if way == 2:
                at -= at % 4  # where fields begin
            if way == 0:
                found[at % len(found)] = rng.randrange(256)
            elif way == 1:
                found[at % len(found)] ^= 1 << rng.randrange(8)
            elif way == 2:
                size = rng.choice((2, 4, 8))
                found[at : at + size] = (rng.choice(edges) % (1 << 8 * size)).to_bytes(size, "little")
            elif way == 3:
                del found[rng.randrange(len(found)) :]
            else:
                found[at:at] = bytes(rng.randrange(1, 80))
            if not found:
                break
        yield bytes(found)


def survey(count):
    """How many mutants of each kernel are refused, and how many are not."""
    told = {True: 0, False: 0}
    for name in NAMES:
        code, called, outside = stored(name)
        for mutant in mutants(code, count, name):
            told[bool(refused(mutant, called, outside))] += 1
    return told


@pytest.mark.deep
def test_nothing_damaged_brings_down_whoever_looks_at_it():
    """Each is refused in words, or laid out within bounds; there are many of both."""
    told = survey(6000)
    assert min(told.values()) > 4000


def unbounded(code):
    """The table of sections, wherever they lie."""
    (start,), (count,) = struct.unpack_from("<Q", code, 40), struct.unpack_from("<H", code, 60)
    return [elf.Section(*fields) for fields in SECTION.iter_unpack(code[start : start + count * SECTION.size])]


def anywhere(formula, field):
    """A relocation that may write beyond its section."""
    return formula, SimpleNamespace(size=0, pack_into=field.pack_into)


FAULTS = {
    "sections may lie beyond": ("sections", unbounded),
    "relocations may write beyond": ("RELOCATIONS", {kind: anywhere(*each) for kind, each in elf.RELOCATIONS.items()}),
    "entries may have any size": (
        "unpack_entries",
        lambda code, section, each: each.iter_unpack(elf.content(code, section)),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_these_mutants_would_find_a_check_that_is_missing(fault, monkeypatch):
    for name in NAMES:
        stored(name)
    monkeypatch.setattr(elf, *FAULTS[fault])
    with pytest.raises((AssertionError, struct.error)):
        survey(6000)


# ---- the processor, as LLVM calls it

ASK = """
import sys
from formats.kernels.engine import processor
print(processor.NAME, processor.FEATURES, "llvmlite" in sys.modules)
"""


def test_llvm_is_asked_once_what_processor_this_is(tmp_path):
    first = run(ASK, OPMATRIX_CACHE=str(tmp_path))
    assert first == [*processor.asked(), "True"]
    assert run(ASK, OPMATRIX_CACHE=str(tmp_path)) == [*first[:2], "False"]
    (file,) = (tmp_path / "processors").iterdir()
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole.replace(b"+sse2", b"-sse2"), b"", b"\xff", whole + b"\n"):
        file.write_bytes(damaged)
        assert run(ASK, OPMATRIX_CACHE=str(tmp_path)) == first and file.read_bytes() == whole


@pytest.mark.parametrize("line", ["flags", "model", "microcode"])
def test_of_another_processor_llvm_is_asked_anew(tmp_path, line):
    run(ASK, OPMATRIX_CACHE=str(tmp_path))
    code = ASK.replace(
        "print",
        f"""
told = processor.cpuinfo()
processor.cpuinfo = lambda: told | {{{line!r}: 'another'}}
processor.processor()
print""",
    )
    assert run(code, OPMATRIX_CACHE=str(tmp_path))[2] == "True" and len([*Path(tmp_path / "processors").iterdir()]) == 2


def test_without_a_cache_llvm_is_asked_each_time():
    assert run(ASK, OPMATRIX_CACHE="/proc/none") == [*processor.asked(), "True"]
