"""Arguments of sentence-transformers that mean nothing here, each refused in a line unless it has a value that asks for
nothing."""

from collections.abc import Mapping
from typing import TypeAlias

from formats.core.errors import InputError

RefusedArguments: TypeAlias = Mapping[str, tuple[tuple[object, ...], str]]
EMBEDDINGS, SPARSE_ROWS, PAIR_SCORES = "embeddings", "sparse rows", "scores of pairs"  # tasks of encoders
TOKEN_ROWS, LATE_ROWS = "rows of tokens", "rows for late interaction"  # other tasks
OTHER_DEVICES = "programs run on this machine's CPU, all threads of it: leave it out"
TORCH_ALONE = "no module of torch is run here: leave it out"
# name -> values that ask for nothing, and the reason why no other is taken
REFUSED: RefusedArguments = {
    "modules": ((None,), "a model is a name or a directory, not modules of torch"),
    "device": ((None, "cpu"), OTHER_DEVICES),
    "backend": (("torch",), "the program is the backend: leave it out"),
    "cache_folder": ((None,), "set OPMATRIX_CACHE, or HF_HOME for files of the hub"),
    "trust_remote_code": ((False,), "no code of a checkpoint is ever run: leave it out"),
    "token": ((None,), "set HF_TOKEN in the environment"),
    "use_auth_token": ((None,), "set HF_TOKEN in the environment"),
    "model_kwargs": ((None, {}), TORCH_ALONE),
    "processor_kwargs": ((None, {}), TORCH_ALONE),
    "config_kwargs": ((None, {}), TORCH_ALONE),
    "keep_in_fp32_modules": ((None, []), TORCH_ALONE),
    "pool": ((None,), OTHER_DEVICES),
    "chunk_size": ((None,), "it divides work among processes, and there is one: leave it out"),
}

AS_COMPUTED = "rows of tokens are given as they are computed: leave it out"
BESIDE_TOKENS: RefusedArguments = {  # the same, where rows of tokens are asked for
    "precision": ((None, "float32"), AS_COMPUTED),
    "normalize_embeddings": ((False,), AS_COMPUTED),
    "truncate_dim": ((None,), AS_COMPUTED),
    "convert_to_tensor": ((False,), "texts have different numbers of tokens: leave it out"),
}

AS_DECLARED: RefusedArguments = {  # the same, of rows for late interaction
    "output_value": (("token_embeddings",), "rows of tokens are given, and no dicts of torch's modules"),
    "token_pooling": ((None,), TORCH_ALONE),
    "device": REFUSED["device"],
    "pool": REFUSED["pool"],
    "chunk_size": REFUSED["chunk_size"],
}


def refuse_arguments(what: str, arguments: Mapping[str, object], refused: RefusedArguments = REFUSED) -> None:
    """Raise InputError for the first argument that would be ignored: one that is `refused` with another value, or one
    that is unknown. `what` names the call."""
    for name, value in arguments.items():
        if name not in refused:
            raise InputError(f"{what}: {name}={value!r:.60}: it is not an argument here: leave it out")
        usual, why = refused[name]
        if not any(value is each or (type(value) is type(each) and value == each) for each in usual):
            raise InputError(f"{what}: {name}={value!r:.60}: {why}")
