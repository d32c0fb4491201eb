"""Object code loaded into memory without LLVM: relocatable ELF files of x86-64, as the System V ABI and its AMD64
supplement define them (sections 4.1 to 4.4), as far as LLVM writes them here.

All is checked before any of it is placed. A contradictory file is damaged: InputError. A feature that may be right but
is not supported here (a relocation, a symbol, a kind of section) is Foreign, and left to LLVM. Memory is written first
and protected then: no page is ever both writable and executable. No unwinding information is registered, as kernels do
not raise."""

import ctypes
import mmap
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from struct import Struct
from struct import error as Overflow
from typing import NamedTuple

from formats.core.errors import InputError

HERE = sys.platform == "linux" and platform.machine() == "x86_64" and sys.maxsize > 1 << 32
MAGIC, RELOCATABLE, X86_64 = b"\x7fELF\x02\x01\x01", 1, 62  # 64 bits, little endian, version 1
HEADER, SECTION = Struct("<16sHHIQQQIHHHHHH"), Struct("<IIQQQQIIQQ")
SYMBOL, RELA = Struct("<IBBHQQ"), Struct("<QQq")
PROGBITS, SYMTAB, STRTAB, ADDENDS, NOBITS, PLAIN, UNWIND = 1, 2, 3, 4, 8, 9, 0x70000001  # types of sections
WRITE, ALLOCATED, EXECUTED = 1, 2, 4  # flags of sections; loading ignores the others:
KNOWN = WRITE | ALLOCATED | EXECUTED | 0x10 | 0x20 | 0x40 | 0x10000000  # merge, strings, info, large
UNDEFINED, RESERVED, GLOBAL_FUNCTION = 0, 0xFF00, 0x12  # of symbols: special sections, and a binding with a type
PAGE, MAX_OBJECT_BYTES = mmap.PAGESIZE, 1 << 26  # bytes of a page; largest size of an object in memory

# the relocations of table 4.9 that need no table of the linker's own: the value (S: symbol, A: addend, P: place), and
# the field that it must fit. A function of PLT32 is called at its own address.
RELOCATIONS: dict[int, tuple[Callable[[int, int, int], int], Struct]] = {
    1: (lambda s, a, p: s + a, Struct("<Q")),  # R_X86_64_64
    2: (lambda s, a, p: s + a - p, Struct("<i")),  # R_X86_64_PC32
    4: (lambda s, a, p: s + a - p, Struct("<i")),  # R_X86_64_PLT32
    10: (lambda s, a, p: s + a, Struct("<I")),  # R_X86_64_32
    11: (lambda s, a, p: s + a, Struct("<i")),  # R_X86_64_32S
    24: (lambda s, a, p: s + a - p, Struct("<q")),  # R_X86_64_PC64
}


class Foreign(InputError):
    """An object that is valid perhaps, but not supported here. Names the unsupported feature."""


class Section(NamedTuple):
    """An entry of the table of sections, in the order of its fields."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    each: int

    @property
    def rights(self) -> int:
        return self.flags & (WRITE | EXECUTED)

    @property
    def stored(self) -> int:
        return 0 if self.kind in (0, NOBITS) else self.size  # bytes in the file


class Symbol(NamedTuple):
    """An entry of the table of symbols, in the order of its fields."""

    name: int
    kind: int
    other: int
    section: int
    value: int
    size: int


class Object:
    """An object's code and data, laid out in `size` bytes: executable, read-only and writable sections on pages of
    their own. `starts`: the offset of each section that is placed. InputError for a damaged file, Foreign."""

    def __init__(self, code: bytes) -> None:
        self.code, self.sections = code, sections(code)
        self.symbols, self.names = symbols(code, self.sections)
        self.starts: dict[int, int] = {}
        self.spans: list[tuple[int, int, int]] = []  # (begin, end, rights)
        at = 0
        for rights in (EXECUTED, 0, WRITE):
            begin = at
            for i, section in enumerate(self.sections):
                if needs_memory(section) and section.rights == rights:
                    self.starts[i] = at + -at % max(section.align, 1)
                    at = self.starts[i] + section.size
            at += -at % PAGE
            if at > begin:
                self.spans.append((begin, at, rights))
        if not 0 < at <= MAX_OBJECT_BYTES:
            raise InputError(f"its sections take {at:,} bytes")
        self.size = at

    def image(self, base: int, outside: Mapping[str, int]) -> bytearray:
        """Return the memory image for the address `base`, where `outside` has the addresses of undefined symbols."""
        image = bytearray(self.size)
        for i, start in self.starts.items():
            if (section := self.sections[i]).kind == PROGBITS:
                image[start : start + section.size] = content(self.code, section)
        for table in self.sections:
            if table.info in self.starts and table.kind == PLAIN:
                raise Foreign("it has relocations without addends")
            if table.info not in self.starts or table.kind != ADDENDS:
                continue
            start, size = self.starts[table.info], self.sections[table.info].stored
            for offset, info, addend in unpack_entries(self.code, table, RELA):
                number, kind = info >> 32, info & 0xFFFFFFFF
                if kind not in RELOCATIONS:
                    raise Foreign(f"relocation of unknown type {kind}")
                formula, field = RELOCATIONS[kind]
                if offset + field.size > size:
                    raise InputError("a relocation lies outside of its section")
                place = start + offset
                try:
                    field.pack_into(image, place, formula(self.address(number, base, outside), addend, base + place))
                except Overflow:
                    raise Foreign(f"relocation of type {kind}: its target is too far away") from None
        return image

    def address(self, number: int, base: int, outside: Mapping[str, int]) -> int:
        """Return the address of a symbol."""
        if not 0 < number < len(self.symbols):
            raise InputError(f"it has no symbol {number}")
        symbol = self.symbols[number]
        if symbol.section == UNDEFINED:
            if (name := self.name(symbol)) not in outside:
                raise Foreign(f"symbol {name[:80]!r}")
            return outside[name]
        return base + self.place(symbol)

    def place(self, symbol: Symbol) -> int:
        """Return the offset of a symbol that the object defines."""
        if symbol.section not in self.starts:
            raise Foreign(f"symbol {self.name(symbol)[:80]!r} is in a section that is not loaded")
        if symbol.value > self.sections[symbol.section].size:
            raise InputError("a symbol lies outside of its section")
        return self.starts[symbol.section] + symbol.value

    def name(self, symbol: Symbol) -> str:
        end = self.names.find(b"\0", symbol.name)
        if end < symbol.name:
            raise InputError("the name of a symbol is not terminated")
        return self.names[symbol.name : end].decode("ascii", "replace")

    def entry(self, name: str) -> int:
        """Return the offset of the function of this name."""
        matches = [
            symbol
            for symbol in self.symbols
            if symbol.kind == GLOBAL_FUNCTION
            and symbol.section in self.starts
            and self.sections[symbol.section].rights == EXECUTED
            and self.name(symbol) == name
        ]
        if len(matches) != 1 or matches[0].value >= self.sections[matches[0].section].size:
            raise InputError(f"it defines no function {name}")
        return self.place(matches[0])


def sections(code: bytes) -> list[Section]:
    """Read the table of sections. All must be within the file and must not overlap."""
    if len(code) < HEADER.size:
        raise InputError("it ends within its header")
    ident, kind, machine, _, _, _, start, _, _, _, _, entry_size, count, _ = HEADER.unpack_from(code)
    if (ident[: len(MAGIC)], kind, machine) != (MAGIC, RELOCATABLE, X86_64):
        raise InputError("it is no relocatable ELF file of x86-64")
    if entry_size != SECTION.size or start + count * entry_size > len(code):
        raise InputError("its table of sections lies outside of it")
    table = [Section(*fields) for fields in SECTION.iter_unpack(code[start : start + count * entry_size])]
    taken = sorted(
        [
            (0, HEADER.size),
            (start, start + count * entry_size),
            *((s.offset, s.offset + s.stored) for s in table if s.stored),
        ]
    )
    if taken[-1][1] > len(code):
        raise InputError("a section lies outside of it")
    if any(end > begin for (_, end), (begin, _) in pairwise(taken)):
        raise InputError("sections overlap")
    return table


def needs_memory(section: Section) -> bool:
    """True if a section is to be in memory. Foreign for one that needs more than that."""
    if not section.flags & ALLOCATED or section.kind == UNWIND or not section.size:
        return False
    if section.kind not in (PROGBITS, NOBITS) or section.flags & ~KNOWN:
        raise Foreign(f"a section of unknown type {section.kind:#x}")
    if section.rights == WRITE | EXECUTED:
        raise Foreign("a section that is both writable and executable")
    if section.align & (section.align - 1) or section.align > PAGE:
        raise Foreign(f"a section aligned to {section.align:,} bytes")
    if section.size > MAX_OBJECT_BYTES:
        raise InputError(f"a section takes {section.size:,} bytes")
    return True


def symbols(code: bytes, sections: list[Section]) -> tuple[list[Symbol], bytes]:
    """Read the one table of symbols, and the table of their names."""
    tables = [section for section in sections if section.kind == SYMTAB]
    if len(tables) != 1:
        raise InputError(f"it has {len(tables)} symbol tables, not 1")
    table = [Symbol(*fields) for fields in unpack_entries(code, tables[0], SYMBOL)]
    if tables[0].link >= len(sections) or (names := sections[tables[0].link]).kind != STRTAB:
        raise InputError("its symbol table has no string table")
    if any(len(sections) <= symbol.section < RESERVED for symbol in table):
        raise InputError("a symbol refers to a section that does not exist")
    return table, content(code, names)


def unpack_entries(code: bytes, section: Section, each: Struct) -> Iterator[tuple[int, ...]]:
    """Yield the entries of a section, all of one size."""
    if section.each != each.size or section.size % each.size:
        raise InputError("the entries of a table have an unexpected size")
    return each.iter_unpack(content(code, section))


def content(code: bytes, section: Section) -> bytes:
    return code[section.offset : section.offset + section.size]


# ---- in memory

REGIONS: list[mmap.mmap] = []  # as long as the process: addresses may still be called


def load_object(code: bytes, name: str, outside: Mapping[str, int]) -> int:
    """Load an object and return the address of its function, which can be called from now on. InputError for a damaged
    object; Foreign, also where the system does not make written memory executable."""
    loaded = Object(code)
    entry = loaded.entry(name)
    region = mmap.mmap(-1, loaded.size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(region))
    region[:] = loaded.image(base, outside)
    for begin, end, rights in loaded.spans:
        if rights != WRITE:
            protect(base + begin, end - begin, mmap.PROT_READ | (mmap.PROT_EXEC if rights & EXECUTED else 0))
    REGIONS.append(region)
    return base + entry


def protect(start: int, size: int, rights: int) -> None:
    if library().mprotect(ctypes.c_void_p(start), ctypes.c_size_t(size), rights):
        raise Foreign("memory cannot be made executable")


@cache
def library() -> ctypes.CDLL:
    """Return the C library of this process."""
    return ctypes.CDLL(None)
