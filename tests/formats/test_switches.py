"""Features of the processor that kernels leave alone: one setting, refused where it says what is none, part of every
key."""

import os
import subprocess
import sys

import pytest
from children import LIMIT, ROOT, printed

from formats.core.errors import InputError
from formats.host.switches import SWITCHES, VARIABLE, switched_off, without

ALL = (
    "+64bit,+amx-bf16,+amx-tile,+avx,+avx2,+avx512bf16,+avx512f,+avx512vnni,-avx10.1,+avxvnni,+f16c,+fma,+sse4.2,+vaes"
)
LEFT = {
    "amx": "64bit avx avx2 avx512bf16 avx512f avx512vnni avxvnni f16c fma sse4.2 vaes",
    "avx512bf16": "64bit amx-bf16 amx-tile avx avx2 avx512f avx512vnni avxvnni f16c fma sse4.2 vaes",
    "avx512vnni": "64bit amx-bf16 amx-tile avx avx2 avx512bf16 avx512f avxvnni f16c fma sse4.2 vaes",
    "avx512": "64bit avx avx2 avxvnni f16c fma sse4.2 vaes",
    "avx2": "64bit avx f16c fma sse4.2",
    "f16c": "64bit avx avx2 avxvnni fma sse4.2 vaes",
    "avx": "64bit sse4.2",
}


@pytest.mark.parametrize("name", SWITCHES)
def test_what_needs_a_feature_goes_with_it(name):
    left = without(ALL, (name,)).split(",")
    assert [each[1:] for each in left if each[0] == "+"] == LEFT[name].split()
    assert [each[1:] for each in left] == [each[1:] for each in ALL.split(",")], (
        "each is still said, or LLVM takes the processor's own"
    )


def test_nothing_is_switched_off_unless_asked(monkeypatch):
    for given in ("", " ", ","):
        monkeypatch.setenv(VARIABLE, given)
        assert switched_off() == () and without(ALL, ()) == ALL
    monkeypatch.setenv(VARIABLE, " -avx512bf16, -amx,-amx")
    assert switched_off() == ("amx", "avx512bf16")


@pytest.mark.parametrize("given", ["-avx3", "+avx512f", "amx", "-amx,-", "-amx -avx2", "-\n"])
def test_unknown_names_are_refused_in_a_line(monkeypatch, given):
    monkeypatch.setenv(VARIABLE, given)
    with pytest.raises(InputError, match="is unknown; give one or more of -amx, -avx512bf16, ") as refused:
        switched_off()
    assert "\n" not in str(refused.value)


def said(*command, off):
    """The command line with features switched off."""
    return subprocess.run(
        [sys.executable, "-m", "rewrites.cli", *command],
        env=os.environ | {VARIABLE: off},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )


@pytest.mark.parametrize("command", [["doctor"], ["optimize", "minilm"]], ids=" ".join)
def test_the_command_line_refuses_them_too(command):
    done = said(*command, off="-avx3")
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith(f"opmatrix: {VARIABLE}=-avx3: "), (
        done.stderr
    )


@pytest.mark.deep
def test_kernels_and_calibrations_have_other_keys():
    code = (
        "from formats.kernels.engine.objects import key; from formats.machine.model import machine_file; "
        "print(key(), machine_file().name)"
    )
    found = {given: {*printed(code, ROOT, **{VARIABLE: given}).split()} for given in ("", ",", "-avx", "-amx")}
    assert found[""] == found[","] and not found[""] & found["-avx"]
    assert len(found[""] | found["-amx"]) >= 3, "a calibration is of what is switched off, kernels of what that leaves"


def test_doctor_says_so():
    told = said("doctor", off="-avx512").stdout
    assert f"{VARIABLE}=-avx512: kernels are not compiled for all that the processor can do" in told
    assert not {"AVX-512", "VNNI"} & {word.strip(",") for word in told.splitlines()[0].split()}
