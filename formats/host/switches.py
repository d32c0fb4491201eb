"""Features of the processor that kernels leave alone: OPMATRIX_FEATURES="-amx,-avx512bf16". For tests and benchmarks of
kernels that this processor would not use, and where an instruction is slow or forbidden.

What is switched off is part of the names of compiled kernels and of calibrations. NumPy and other libraries know
nothing of it."""
import os

from formats.core.errors import InputError

VARIABLE = "OPMATRIX_FEATURES"
VECTORS_512 = "avx512", "avx10", "amx"
VECTORS_256 = *VECTORS_512, "avx2", "avxvnni", "avxifma", "avxneconvert", "vaes", "vpclmulqdq", "sha512", "sm3", "sm4"
# what goes with each name: the features that begin so, in LLVM's words, of which others are no use without the first
SWITCHES = {"amx": ("amx",), "avx512bf16": ("avx512bf16",), "avx512vnni": ("avx512vnni",), "avx512": VECTORS_512,
            "avx2": VECTORS_256,
            "f16c": (*VECTORS_512, "f16c"), "avx": (*VECTORS_256, "avx", "f16c", "fma", "xop")}


def switched_off() -> tuple[str, ...]:
    """The names in OPMATRIX_FEATURES, in order. Raises InputError for what is none."""
    given = os.environ.get(VARIABLE, "")
    names = [word.strip() for word in given.split(",") if word.strip()]
    for name in names:
        if name[0] != "-" or name[1:] not in SWITCHES:
            known = ", ".join(f"-{each}" for each in SWITCHES)
            raise InputError(f"{VARIABLE}={given}: {name} is none of {known}; give some of these, with commas between, "
                             "or unset it")
    return tuple(sorted({name[1:] for name in names}))


def without(features: str, names: tuple[str, ...]) -> str:
    """LLVM's list of features, +name or -name each, with these switched off."""
    gone = tuple(start for name in names for start in SWITCHES[name])
    return ",".join(f"-{each[1:]}" if gone and each[1:].startswith(gone) else each for each in features.split(","))
