"""Features of the processor that kernels must not use: OPMATRIX_FEATURES="-amx,-avx512bf16". For tests and benchmarks
of kernels that this processor would not use, and where an instruction is slow or forbidden.

The features that are switched off are part of the names of compiled kernels and of calibrations. NumPy and other
libraries ignore them."""

import os

from formats.core.errors import InputError

VARIABLE = "OPMATRIX_FEATURES"
VECTORS_512 = "avx512", "avx10", "amx"
VECTORS_256 = *VECTORS_512, "avx2", "avxvnni", "avxifma", "avxneconvert", "vaes", "vpclmulqdq", "sha512", "sm3", "sm4"
# the features switched off with each name: those with these prefixes in LLVM's names; they are of no use without it
SWITCHES = {
    "amx": ("amx",),
    "avx512bf16": ("avx512bf16",),
    "avx512vnni": ("avx512vnni",),
    "avx512": VECTORS_512,
    "avx2": VECTORS_256,
    "f16c": (*VECTORS_512, "f16c"),
    "avx": (*VECTORS_256, "avx", "f16c", "fma", "xop"),
}


def switched_off() -> tuple[str, ...]:
    """Return the names in OPMATRIX_FEATURES, in order. Raise InputError for an unknown one."""
    setting = os.environ.get(VARIABLE, "")
    names = [word.strip() for word in setting.split(",") if word.strip()]
    for name in names:
        if name[0] != "-" or name[1:] not in SWITCHES:
            known = ", ".join(f"-{switch}" for switch in SWITCHES)
            raise InputError(
                f"{VARIABLE}={setting}: {name} is unknown; give one or more of {known}, separated by commas, or unset "
                "it"
            )
    return tuple(sorted({name[1:] for name in names}))


def without(features: str, names: tuple[str, ...]) -> str:
    """Return LLVM's list of features, +name or -name each, with these switched off."""
    gone = tuple(start for name in names for start in SWITCHES[name])
    return ",".join(
        f"-{feature[1:]}" if gone and feature[1:].startswith(gone) else feature for feature in features.split(",")
    )
