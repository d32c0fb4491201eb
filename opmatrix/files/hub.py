"""Models by their names on the Hugging Face hub, org/name or org/name@revision: huggingface_hub, where it is installed,
downloads into its own cache what a checkpoint is read from, numbers and JSON; never code."""
import re
from pathlib import Path

from formats.core.errors import InputError

HUB_NAME = re.compile(r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?", re.ASCII)
FILES = ("config.json", "model.safetensors", "model.safetensors.index.json", "model-*.safetensors", "tokenizer.json",
         "tokenizer_config.json", "modules.json", "config_sentence_transformers.json", "sentence_*_config.json",
         "*/config.json")                                   # of modules: their folders are called as modules.json says
BY_HAND = ("from transformers import AutoModel, AutoTokenizer; "
           "AutoModel.from_pretrained({0!r}).save_pretrained({1!r}); "
           "AutoTokenizer.from_pretrained({0!r}).save_pretrained({1!r})")


def is_hub_name(model: str) -> bool: return bool(HUB_NAME.fullmatch(model))


def download(model: str) -> Path:
    """The directory of a model's files, in the cache of huggingface_hub. Raises InputError where that is not installed,
    with the lines of Python that make a directory without it, and where it cannot give the model, with what it says."""
    found = HUB_NAME.fullmatch(model)
    assert found
    repository, revision = found["repository"], found["revision"]
    try:
        import huggingface_hub
    except ImportError:
        by_hand = BY_HAND.format(repository, repository.partition("/")[2])
        raise InputError(f"{model}: no directory is called so, and names of the hub need huggingface_hub: pip install "
                         f"huggingface_hub; or make a directory: {by_hand}") from None
    try: return Path(huggingface_hub.snapshot_download(repository, revision=revision, allow_patterns=[*FILES]))
    except (OSError, ValueError) as error:
        said = next(iter(str(error).split("\n")), "") or type(error).__name__
        raise InputError(f"{model}: no directory is called so, and huggingface_hub cannot give it: {said}: check the "
                         "name") from error
