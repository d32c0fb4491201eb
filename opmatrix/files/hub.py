"""Models by their names on the Hugging Face hub, org/name or org/name@revision. huggingface_hub, where it is installed,
downloads the files of a checkpoint into its own cache: numbers and JSON, never code."""

import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from formats.core.errors import InputError
from formats.disk.files import read_json
from opmatrix.files.directory.model_files import FETCHED, INDEX, WEIGHTS

HUB_NAME = re.compile(r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?", re.ASCII)
BY_HAND = (
    "from transformers import AutoModel, AutoTokenizer; "
    "AutoModel.from_pretrained({0!r}).save_pretrained({1!r}); "
    "AutoTokenizer.from_pretrained({0!r}).save_pretrained({1!r})"
)


def is_hub_name(model: str) -> bool:
    """True for a name of the form org/name or org/name@revision."""
    return bool(HUB_NAME.fullmatch(model))


def download(model: str) -> Path:
    """Return the directory of a model's files, in the cache of huggingface_hub. Raises InputError if huggingface_hub is
    not installed, with the lines of Python that make a directory without it, and if it cannot give the model, with its
    own error text."""
    match = HUB_NAME.fullmatch(model)
    assert match
    repository, revision = match["repository"], match["revision"]
    try:
        import huggingface_hub
    except ImportError:
        by_hand = BY_HAND.format(repository, repository.partition("/")[2])
        raise InputError(
            f"{model}: no such directory, and names of the hub need huggingface_hub: pip install "
            f"huggingface_hub; or make a directory: {by_hand}"
        ) from None
    bring = partial(huggingface_hub.snapshot_download, repository, revision=revision)
    try:
        directory = Path(bring(allow_patterns=[*FETCHED]))
        if shards := lacking_shards(directory):
            directory = Path(bring(allow_patterns=[*FETCHED, *shards]))
        return directory
    except (OSError, ValueError) as error:
        complaint = next(iter(str(error).split("\n")), "") or type(error).__name__
        raise InputError(
            f"{model}: no such directory, and huggingface_hub cannot download it: {complaint}: check the name"
        ) from error


def lacking_shards(directory: Path) -> list[str]:
    """List the files that an index of weights names and a directory does not hold. A damaged index names no file: it is
    refused where it is read."""
    if (directory / WEIGHTS).exists() or not (directory / INDEX).exists():
        return []
    try:
        index = read_json(directory / INDEX)
    except InputError:
        return []
    shard_of = index.get("weight_map") if isinstance(index, dict) else None
    names: Iterable[object] = shard_of.values() if isinstance(shard_of, dict) else ()
    plain = {name for name in names if isinstance(name, str) and name == Path(name).name}
    return sorted(name for name in plain if name.endswith(".safetensors") and not (directory / name).exists())
