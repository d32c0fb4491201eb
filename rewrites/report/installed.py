"""Versions of installed packages; the command line asks for them before it imports what reports need."""

from importlib.metadata import PackageNotFoundError, version


def installed(name: str) -> str:
    """Return the version of a package; "not installed" for a checkout that is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
