"""Where opmatrix keeps what it fetched or measured: one directory of the user, named in one place."""
import os
from pathlib import Path


def cache_directory() -> Path:
    """The directory `$OPMATRIX_CACHE`, else the platform's cache directory for opmatrix. It is made if it is absent."""
    if not (named := os.environ.get("OPMATRIX_CACHE")):
        from platformdirs import user_cache_dir
        named = user_cache_dir("opmatrix", appauthor=False)
    directory = Path(named).expanduser()
    directory.mkdir(parents=True, exist_ok=True)
    return directory
