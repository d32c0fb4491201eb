"""The cache: believed where only its user and the system can write, never in the way where it cannot be used, and
bounded."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from children import ROOT

from formats.core.errors import InputError
from formats.disk import cache, files, holdings
from formats.disk.cache import Distrusted
from formats.disk.holdings import DAY, MONTH
from formats.kernels.engine import objects
from formats.machine import local
from formats.machine import model as machines
from formats.machine.model import Machine
from opmatrix.runtime.pricing import catalogue, this_machine
from rewrites.approximate import error_cache as remember
from rewrites.cli import __main__ as cli
from rewrites.lowering.lower import Method

OTHER = 54321  # a user who is neither us nor root
owned = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files to others")
posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files here do not say who owns them")


@pytest.fixture(autouse=True)
def unsaid():
    """Every test hears what it would hear first."""
    cache.say.cache_clear()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A cache two directories down that holds one file."""
    monkeypatch.setenv("OPMATRIX_CACHE", str(tmp_path / "mine" / "cache"))
    cache.put(cache.location() / "machines" / "kept.json", b"kept")
    return cache.location()


def kept(home):
    return home / "machines" / "kept.json"


# ---- who could have written it


@posix
@pytest.mark.parametrize("unnamed", [True, False])
@pytest.mark.parametrize(
    "umask, directories, file",
    [(0, 0o755, 0o644), (0o022, 0o755, 0o644), (0o002, 0o755, 0o644), (0o027, 0o750, 0o640), (0o077, 0o700, 0o600)],
)
def test_what_is_made_others_read_as_the_umask_says_and_never_write(
    home, monkeypatch, unnamed, umask, directories, file
):
    """From the first moment on, while it is still being written, too."""
    if not unnamed:
        monkeypatch.setattr(files, "open_unnamed", lambda *_: None)
    at_first, before = [], os.umask(umask)
    monkeypatch.setattr(os, "fsync", lambda number: at_first.append(os.fstat(number).st_mode & 0o777))
    try:
        cache.put(home / "deeper" / "and" / "deeper", b"")
    finally:
        os.umask(before)
    made = [home / "deeper", home / "deeper" / "and", home / "deeper" / "and" / "deeper"]
    assert [path.stat().st_mode & 0o777 for path in made] == [directories, directories, file]
    assert at_first == [file] and os.listdir(made[1]) == ["deeper"]
    assert cache.recall(made[2]) == b""


@posix
def test_a_link_is_no_file_of_the_cache(home, tmp_path):
    """Although it leads to a file of ours: nobody has looked at the directories on its way."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    kept(home).rename(tmp_path / "open" / "kept.json")
    kept(home).symlink_to(tmp_path / "open" / "kept.json")
    with pytest.raises(Distrusted, match=r"kept\.json: it is a symbolic link"):
        cache.recall(kept(home))


@pytest.mark.skipif(holdings.fcntl is None, reason="no locks here")
def test_a_lock_that_a_stranger_holds_is_not_waited_for(home, monkeypatch):
    """Who may read a directory may lock it."""
    monkeypatch.setattr(holdings, "REMOVAL_TIME", 0.0)
    stranger = os.open(home, os.O_RDONLY)
    try:
        holdings.fcntl.flock(stranger, holdings.fcntl.LOCK_EX)
        os.close(holdings.using(home))
    finally:
        os.close(stranger)


@posix
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o750, 0o500])
def test_what_others_can_only_read_is_believed(home, mode):
    for path in (home.parent, home, home / "machines"):
        path.chmod(mode)
    kept(home).chmod(mode & 0o644)
    assert cache.recall(kept(home)) == b"kept"


WRITTEN = {
    "a directory above": lambda home: home.parent,
    "the cache": lambda home: home,
    "a kind": lambda home: home / "machines",
    "the file": kept,
}


@posix
@pytest.mark.parametrize("mode", [0o722, 0o720, 0o702, 0o777])
@pytest.mark.parametrize("where", WRITTEN)
def test_what_others_may_write_is_refused_in_words(home, where, mode):
    """Alone, in the middle of the way, and although its content is what it was."""
    place = WRITTEN[where](home)
    place.chmod(mode)
    with pytest.raises(Distrusted, match=rf"{place}: other users may write.*mode {mode:o}") as caught:
        cache.recall(kept(home))
    if where != "the file":
        assert "`chmod " in str(caught.value) and "OPMATRIX_CACHE" in str(caught.value)
        with pytest.raises(Distrusted):
            cache.put(kept(home), b"more")
    place.chmod(0o700)
    assert cache.recall(kept(home)) == b"kept"


@owned
@pytest.mark.parametrize("where", WRITTEN)
def test_what_belongs_to_another_is_refused_in_words(home, where):
    os.chown(place := WRITTEN[where](home), OTHER, -1)
    with pytest.raises(Distrusted, match=rf"{place}: it belongs to user {OTHER}: set OPMATRIX_CACHE"):
        cache.recall(kept(home))


@owned
def test_a_directory_that_all_may_write_to_serves_as_parent_only_if_nobody_moves_what_is_anothers(home):
    home.parent.chmod(0o1777)
    assert cache.recall(kept(home)) == b"kept"
    (home / "machines").chmod(0o1777)  # there others could add files, and links to files of ours
    with pytest.raises(Distrusted, match="machines: other users may write there"):
        cache.recall(kept(home))
    (home / "machines").chmod(0o700)
    os.chown(home, OTHER, -1)
    with pytest.raises(Distrusted, match=f"belongs to user {OTHER}"):
        cache.recall(kept(home))


@owned
def test_links_are_followed_that_only_we_could_have_made(home, tmp_path, monkeypatch):
    for name, target in (("straight", home), ("around", Path("straight")), ("relative", Path("other/../mine/cache"))):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "other").mkdir(0o700)
    for name in ("straight", "around", "relative"):
        assert cache.recall(kept(tmp_path / name)) == b"kept"
    os.chown(tmp_path / "straight", OTHER, -1, follow_symlinks=False)
    for name in ("straight", "around"):
        with pytest.raises(Distrusted, match=f"straight: it belongs to user {OTHER}"):
            cache.recall(kept(tmp_path / name))
    home.parent.chmod(0o777)  # the way that a link leads is looked at, too
    with pytest.raises(Distrusted, match="mine: other users may write there"):
        cache.recall(kept(tmp_path / "relative"))
    (tmp_path / "endless").symlink_to("endless")
    with pytest.raises(InputError, match="symbolic links"):
        cache.recall(kept(tmp_path / "endless"))


UNREADABLE = """
import os, sys                                              # all before: the other user may not read this Python
from pathlib import Path
from formats.disk import cache
from formats.core.errors import InputError
if not os.geteuid():
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
try: cache.recall(Path(sys.argv[1]) / "machines" / "kept.json")
except InputError as error: print(type(error).__name__, error)
try: cache.put(Path(sys.argv[1]) / "machines" / "more.json", b"")
except OSError as error: print(cache.why(Path(sys.argv[1]) / "machines", error))
"""


@posix
@pytest.mark.parametrize(
    "where, said, kept_said",
    [
        ("the cache", "{home}: it belongs to user", "{home}: it belongs to user"),
        ("a kind", "{home}/machines: it belongs to user", "{home}/machines: it belongs to user"),
        ("the file", "{home}/machines: a file there belongs to user", "{home}/machines: Permission denied: set"),
    ],
)
def test_what_may_not_be_read_is_said_so_and_not_that_writing_failed(where, said, kept_said):
    """By another user where this one is root, whom no mode stops."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        cache.put(kept(home := Path(place) / "cache"), b"kept")
        for each in (home, home / "machines"):
            each.chmod(0o555)
        WRITTEN[where](home).chmod(0o700 if os.geteuid() == 0 else 0)
        done = subprocess.run(
            [sys.executable, "-c", UNREADABLE, str(home), str(OTHER)],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OPMATRIX_CACHE": str(home)},
        )
        for each in (home, home / "machines"):
            each.chmod(0o700)
    read, written = done.stdout.splitlines()
    assert read.startswith("Unreadable " + said.format(home=home)) and f"chmod -R go+rX {home}" in read, done.stderr
    assert written.startswith(kept_said.format(home=home))


@posix
def test_a_file_is_what_was_opened_and_no_pipe(home, monkeypatch):
    """A file that is exchanged after its directory was looked at is judged by its descriptor; nobody waits for a
    writer."""
    (other := home / "other").write_bytes(b"other")
    other.chmod(0o666)
    real = cache.open_regular
    monkeypatch.setattr(cache, "open_regular", lambda path: os.replace(home / "other", path) or real(path))
    with pytest.raises(Distrusted, match=r"kept\.json: other users may write to it"):
        cache.recall(kept(home))
    monkeypatch.undo()
    assert not other.exists()
    kept(home).unlink()
    os.mkfifo(kept(home))
    with pytest.raises(InputError, match="a pipe"):
        cache.recall(kept(home))


def test_a_file_that_is_too_large_is_not_read(home):
    with pytest.raises(InputError, match=r"kept\.json: more than 3 bytes"):
        cache.recall(kept(home), 3)


CHILD = """
import logging, os, platformdirs, sys                       # all before: the other user may not read this Python
from pathlib import Path
from formats.disk import cache, holdings
from formats.core.errors import InputError
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
file = Path(sys.argv[1]) / "machines" / "kept.json"
try: print(cache.recall(file).decode())
except InputError as error: print(type(error).__name__)
print(holdings.try_put(file, b"new", "numbers"))
"""


@owned
@pytest.mark.parametrize(
    "owner, mode, said",
    [
        (0, 0o755, ["kept", "False"]),
        (OTHER, 0o700, ["kept", "True"]),
        (OTHER, 0o777, ["Distrusted", "False"]),
        (OTHER + 1, 0o755, ["Distrusted", "False"]),
    ],
)
def test_another_user_reads_what_is_the_systems_and_writes_only_what_is_his(owner, mode, said):
    """In a process of another user, whom modes do stop."""
    with tempfile.TemporaryDirectory() as place:
        cache.put(file := kept(Path(place) / "cache"), b"kept")
        file.chmod(0o644)
        Path(place).chmod(0o755)
        for path in (file, *list(file.parents)[:2]):
            os.chown(path, owner, -1)
        for path in list(file.parents)[:2]:
            path.chmod(mode)
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(file.parents[1]), str(OTHER)],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert done.stdout.split() == said, done.stderr
        assert done.stderr.count("\n") == said.count("False") == done.stderr.count("opmatrix: numbers: not kept: ")


# ---- what cannot be kept

UNUSABLE = ["/proc/none", "file", "file/below", "/dev/full", "x" * 300, "deep/" * 1000, "~nobody-of-this-name/cache"]


@pytest.fixture(params=UNUSABLE, ids=lambda name: name[:12])
def unusable(request, tmp_path, monkeypatch):
    """A cache that cannot be."""
    (tmp_path / "file").touch()
    name = request.param
    monkeypatch.setenv("OPMATRIX_CACHE", name if name[0] in "/~" else str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    yield name
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def known():
    """This machine with coefficients that were not measured."""
    prices = catalogue()
    return Machine(
        {kernel: [1e-9] * len(prices[kernel].terms) for kernel in prices.common}, **machines.here(), catalogue=prices
    )


def test_without_a_cache_all_goes_on_with_a_line(unusable, monkeypatch, caplog):
    monkeypatch.setattr(local, "calibrate", lambda catalogue, progress: known())
    assert this_machine() == this_machine() == known()
    assert [line.startswith("opmatrix: the calibration: not kept: ") for line in caplog.messages] == [True]
    measured = {"w": [Method("half", (), "plain", 1e-9)]}
    remember.save_errors(file := cache.location() / "errors" / "0.json", measured)
    assert remember.recall(file, ["w"]) is None
    assert all("OPMATRIX_CACHE" in line and "\n" not in line and len(line) < 500 for line in caplog.messages)
    assert len(caplog.messages) == 2 and caplog.messages[1].startswith("opmatrix: measured errors: not kept: ")


def test_the_doctor_names_a_cache_that_cannot_be(unusable, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["opmatrix", "doctor"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code in (None, 0) and "a cache that is not kept: " in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["opmatrix", "doctor", "--clean"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2 and capsys.readouterr().err.count("\n") == 1


def test_a_full_disk_keeps_what_was_there(home, monkeypatch, caplog):
    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert not holdings.try_put(kept(home), b"new", "numbers")
    assert cache.recall(kept(home)) == b"kept" and [path.name for path in kept(home).parent.iterdir()] == ["kept.json"]
    assert "machines: No space left on device: set OPMATRIX_CACHE" in caplog.messages[0]


# ---- errors that were measured

METHODS = {
    "a": [Method("half", (), "plain", 1e-9), Method("block", (("density", 0.5), ("tile", (16, 16))), "wanda", 0.0)],
    "b": [Method("lowrank", (("rank", 8),), "whitened", 2.0)],
    "c": [],
}


def test_measured_errors_are_recalled(home):
    remember.save_errors(file := home / "errors" / "0.json", METHODS)
    assert remember.recall(file, ["a", "b", "c"]) == METHODS
    assert remember.recall(file, ["a", "d"]) is None, "not all of them"


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: kept[:40],
        lambda kept: "[]",
        lambda kept: "[" * 100_000,
        lambda kept: kept.replace('"half"', '"none"'),
        lambda kept: kept.replace("1e-09", "-1e-09"),
        lambda kept: kept.replace("1e-09", "NaN"),
        lambda kept: kept.replace("1e-09", '"1"'),
        lambda kept: kept.replace("1e-09", "true"),
        lambda kept: kept.replace('"plain"', '"fancy"'),
        lambda kept: kept.replace("0.5", "null"),
        lambda kept: kept.replace('"density"', '"rank"'),
        lambda kept: kept.replace('["density", 0.5]', '"density"'),
        lambda kept: kept.replace('"rank", 8', '"rank", -8'),
        lambda kept: kept.replace('"a": [', '"a": [7, '),
        lambda kept: kept.replace('"c": []', '"c": 0'),
    ],
)
def test_errors_that_nobody_kept_so_are_measured_again(home, change):
    remember.save_errors(file := home / "errors" / "0.json", METHODS)
    good = file.read_text()
    file.write_text(change(good))
    assert file.read_text() != good
    assert remember.recall(file, METHODS) is None


@posix
def test_errors_that_could_be_of_others_are_not_believed(home, caplog):
    remember.save_errors(file := home / "errors" / "0.json", METHODS)
    file.chmod(0o666)
    assert remember.recall(file, METHODS) is None and "measured again: " in caplog.messages[0]


# ---- what it holds, and what goes


def entry(path, age, size=10):
    """A file, or a directory that holds one, last used so many seconds ago."""
    file = path if path.suffix else path / "code.o"
    file.parent.mkdir(0o700, parents=True, exist_ok=True)
    file.write_bytes(b"0" * size)
    os.utime(file, (time.time() - age,) * 2)
    os.utime(path, (time.time() - age,) * 2)
    return path


HOLDS = """
import sys, time
from pathlib import Path
from formats.disk.holdings import using
using(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_cache_is_bounded_by_last_use_and_what_runs_keeps_its_code(home):
    most = holdings.ENTRY_KINDS["kernels"].most
    directories = [entry(home / "kernels" / f"{i:016x}", 100 * i) for i in range(most + 4)]
    mine = entry(home / "kernels" / "a word", 0)
    (link := home / "kernels" / ("f" * 16)).symlink_to(mine)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(directories[-1])],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        assert holder.stdout.readline() == "held\n"
        os.utime(directories[-1], (0, 0))  # it began long ago
        holdings.evict_oldest(home / "kernels", holdings.ENTRY_KINDS["kernels"])
        there = [path.exists() for path in directories]
        assert there == [True] * most + [False] * 3 + [True], "the oldest go, but for what a process uses"
        assert mine.exists() and link.is_symlink(), "what is not ours stays, and does not count"
    finally:
        holder.kill()
        holder.communicate()
    holdings.evict_oldest(home / "kernels", holdings.ENTRY_KINDS["kernels"])
    assert not directories[-1].exists() and all(path.exists() for path in directories[:most])


@pytest.mark.parametrize("kind, name", [("machines", "{:016x}.json"), ("errors", "{:024x}.json")])
def test_writing_bounds_what_was_written_before(home, kind, name, monkeypatch):
    monkeypatch.setitem(holdings.ENTRY_KINDS, kind, holdings.EntryKind(holdings.ENTRY_KINDS[kind].names, 3))
    files = [entry(home / kind / name.format(i), 100_000 * (i + 1)) for i in range(5)]
    (blas := home / kind / "blas.json").write_text("{}")
    old, young = (entry(home / kind / f".{i * 8}.part", age) for i, age in (("0", 2 * DAY), ("1", 60)))
    assert cache.recall(files[4]), "and this is its last use"
    holdings.try_put(home / kind / name.format(9), b"new", "numbers")
    assert [path.exists() for path in files] == [True, False, False, False, True]
    assert blas.exists() and young.exists() and not old.exists()


def test_what_is_recalled_stays_young_without_a_write_each_time(home):
    os.utime(kept(home), (0, 0))
    cache.recall(kept(home))
    assert (used := kept(home).stat().st_mtime_ns) > (time.time() - 60) * 1e9
    cache.recall(kept(home))
    assert kept(home).stat().st_mtime_ns == used


def test_the_doctor_says_what_there_is_and_cleans(home, monkeypatch, capsys):
    this, other = (entry(home / "kernels" / key, MONTH, 3_000_000) for key in (objects.key(), "0" * 16))
    known().save(mine := machines.machine_file())
    fewer, peaks, foreign, beside = (
        home / "machines" / f"{i * 16}{end}"
        for i, end in (("1", ".json"), ("1", ".peaks.json"), ("2", ".json"), ("2", ".peaks.json"))
    )
    for file, given in ((fewer, {"threads": 99}), (foreign, {"versions": {}})):
        file.write_text(json.dumps(json.loads(mine.read_text()) | given))
    for file in (peaks, beside):
        file.write_text("{}")
    recent, forgotten = (entry(home / "errors" / f"{i * 24}.json", age) for i, age in (("1", DAY), ("2", 2 * MONTH)))
    peer, running, strange = (
        entry(home / "peers" / name, age, 2_000_000)
        for name, age in (("engine-1.0-0123456789ab", 2 * DAY), ("engine-1.1-0123456789ab", 60), ("mine", 2 * DAY))
    )
    base = entry(home / "base", 2 * DAY).parent / "base"
    (base / "code.o").rename(base / "config.json")
    os.utime(base, (0, 0))
    model = entry(home / "minilm", MONTH)
    monkeypatch.setattr(sys, "argv", ["opmatrix", "doctor", "--clean"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr().out
    assert end.value.code in (None, 0)
    gone = [other, foreign, beside, forgotten, peer, base]
    assert not any(path.exists() for path in gone) and all(str(path) in said for path in gone)
    stays = [this, mine, fewer, peaks, recent, running, strange, model, kept(home)]
    assert all(path.exists() for path in stays) and not any(f"{path}\n" in said for path in stays)
    assert f"{len(gone)} removed, 5.0 MB" in said and "kernels 1 (3.0 MB)" in said and "minilm 1 (0.0 MB)" in said


@posix
def test_nothing_is_cleaned_where_others_could_exchange_it(home, monkeypatch, capsys):
    other = entry(home / "kernels" / ("0" * 16), MONTH)
    home.chmod(0o777)
    monkeypatch.setattr(sys, "argv", ["opmatrix", "doctor", "--clean"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2 and "other users may write there" in capsys.readouterr().err and other.exists()


# ---- names


@pytest.mark.parametrize(
    "name",
    [
        "../square",
        "/square",
        "a/b",
        "",
        ".",
        "..",
        "a\0b",
        "square.o",
        "a-b",
        "square-0123456789abcdeF",
        "a\n",
        "x" * 10 + "/../y",
    ],
)
def test_a_symbol_does_not_lead_out_of_its_directory(name, tmp_path):
    with pytest.raises(ValueError, match="a kernel is named by letters"):
        objects.file(tmp_path, name)
    with pytest.raises(ValueError, match="a kernel is named by letters"):
        objects.write_code(tmp_path, name, b"", [])
    assert objects.file(tmp_path, "square-0123456789abcdef") == tmp_path / "square-0123456789abcdef.o"


def test_every_file_of_a_calibration_is_an_entry_of_its_kind():
    """The model, its peaks, and the parts that were measured later: each is counted, evicted and cleaned."""
    names = holdings.ENTRY_KINDS["machines"].names
    files = machines.machine_file(), machines.machine_file().with_suffix(".peaks.json"), local.part_file(["linear"])
    assert all(names.fullmatch(file.name) for file in files), files
    assert not names.fullmatch("kept.json")
