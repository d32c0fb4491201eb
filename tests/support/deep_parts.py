"""The tests that are marked `deep`, in parts: `pytest --deep-part N` runs one."""

from zlib import crc32

PARTS = 20  # one takes about a minute of two cores


def runs_all(asked, named, part):
    """True if all deep tests are run: they are asked for, or files or tests are named, and no part of them."""
    return asked or (named and part is None)


def is_left(mark, item, seen, part=None):
    """True if a deep test is left out: it is no n-th case of its function, and in no part that is asked for."""
    function = item.path, item.originalname
    seen[function] += 1
    return (not mark.kwargs or (seen[function] - 1) % mark.kwargs["every"]) and part_of(item.nodeid) != part


def part_of(name):
    """The part of a deep test, by its name, whatever other tests there are."""
    return crc32(name.encode()) % PARTS
