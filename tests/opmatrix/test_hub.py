"""Models by their names on the hub, from a stand-in for huggingface_hub: nothing here asks a network."""

import json
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import checkpoints
import numpy as np
import pytest

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import open_model
from opmatrix.models import tensors
from rewrites.workload.resolve import source


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub of one model in shards, with code and pickled weights beside it; what it was asked for; where it puts what
    the patterns allow, as links to other files."""
    there = checkpoints.write(tmp_path / "there", shards=2)
    for name in ("modeling.py", "pytorch_model.bin", "model.onnx"):
        (there / name).write_text("print('run')")
    asked = []

    def snapshot_download(repository, *, revision=None, allow_patterns):
        if repository != "org/small":
            raise OSError("404 Client Error.\nRepository Not Found")
        asked.append((repository, revision))
        (place := tmp_path / "cache").mkdir(exist_ok=True)
        for file in (file for file in there.rglob("*") if file.is_file()):
            name = str(file.relative_to(there))
            if any(fnmatch(name, pattern) for pattern in allow_patterns) and not (place / name).exists():
                (place / name).parent.mkdir(exist_ok=True)
                (place / name).symlink_to(file)
        return str(place)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    return SimpleNamespace(asked=asked, there=there, cache=tmp_path / "cache")


@pytest.mark.parametrize(
    "name, revision", [("org/small", None), ("org/small@v1.0", "v1.0"), ("org/small@refs/pr/1", "refs/pr/1")]
)
def test_a_name_of_the_hub_is_the_model_there(hub, name, revision):
    found, batch = open_model(name), Batch([[1, 2, 3], [4]])
    assert hub.asked == [("org/small", revision)] and found.name == name
    assert np.array_equal(dense(found.operator(), batch), dense(open_model(hub.there).operator(), batch))
    assert found.tokenizer().encode("the bank").tokens.tolist()


def test_only_numbers_and_json_are_brought(hub):
    open_model("org/small")
    names = {file.name for file in hub.cache.iterdir()}
    assert "config.json" in names and "tokenizer.json" in names and len(names) == 5
    assert not {name for name in names if not name.endswith((".json", ".safetensors"))}


OPENED: list[str] | None = None


def note(event, arguments):
    """An audit hook, which stays as long as the process: notes what is opened while somebody wants to know."""
    if event == "open" and OPENED is not None:
        OPENED.append(str(arguments[0]))


@pytest.mark.parametrize("folders", [("1_Pooling", "2_Normalize"), ("pooling", "last")])
def test_all_that_is_read_of_a_directory_is_brought(hub, monkeypatch, folders):
    """Every file that a directory with all of them is read from, and so the same tokens and pooling."""
    checkpoints.pool(
        hub.there,
        "mean",
        files={
            "config_sentence_transformers.json": {"prompts": {"query": "of "}, "default_prompt_name": "query"},
            "sentence_bert_config.json": {"do_lower_case": True},
            "tokenizer_config.json": {"model_max_length": 7},
            "2_Normalize/config.json": {},
        },
    )
    said = (hub.there / "modules.json").read_text()
    for name, other in zip(("1_Pooling", "2_Normalize"), folders, strict=True):
        (hub.there / name).rename(hub.there / other)
        said = said.replace(f'"path": "{name}"', f'"path": "{other}"')
    (hub.there / "modules.json").write_text(said)
    sys.addaudithook(note)
    monkeypatch.setattr(sys.modules[__name__], "OPENED", [])
    here = open_model(hub.there)
    here.operator(True)
    wanted = here.pooling(), here.tokenizer().encode("the bank " * 9).tokens.tolist(), here.positions
    read = {str(Path(file).relative_to(hub.there)) for file in OPENED if str(file).startswith(f"{hub.there}/")}
    assert {"tokenizer_config.json", f"{folders[0]}/config.json", "sentence_bert_config.json"} <= read
    found = open_model("org/small")
    assert read <= {str(file.relative_to(hub.cache)) for file in hub.cache.rglob("*")}
    assert (found.pooling(), found.tokenizer().encode("the bank " * 9).tokens.tolist(), found.positions) == wanted
    assert wanted[0].max_seq_length == 7 and wanted[0].lower and wanted[0].prompt == "of "


@pytest.fixture
def speaking(hub):
    """A GPT-2 on the hub, which says in three files which tokens end a text, its shards called as nobody calls them."""
    config = dict(
        model_type="gpt2",
        architectures=["GPT2LMHeadModel"],
        vocab_size=41,
        n_embd=8,
        n_positions=20,
        n_head=2,
        n_layer=1,
        eos_token_id=3,
    )
    arrays = {name: np.ones(shape, "<f4") for name, shape in tensors(config).items()}
    for file in hub.there.glob("model-*"):
        file.unlink()
    shards = {name: f"part{place % 2}.safetensors" for place, name in enumerate(sorted(arrays))}
    for shard in set(shards.values()):
        checkpoints.safetensors(hub.there / shard, {name: arrays[name] for name in arrays if shards[name] == shard})
    for name, content in {
        "model.safetensors.index.json": {"weight_map": shards},
        "config.json": config,
        "generation_config.json": {"eos_token_id": [4, 5]},
        "tokenizer_config.json": {"eos_token": "river", "tokenizer_class": "PreTrainedTokenizerFast"},
        "special_tokens_map.json": {"eos_token": "river"},
        "added_tokens.json": {},
    }.items():
        (hub.there / name).write_text(json.dumps(content))
    return hub


def test_what_ends_a_text_is_the_same_by_name(speaking):
    """Shards that an index names otherwise are brought, too."""
    wanted = source(open_model(speaking.there))
    assert len(wanted["ends"]) == 4 and open_model(speaking.there).operator().shape[1] == 41
    assert source(open_model("org/small"))["ends"] == wanted["ends"]
    assert open_model("org/small").operator().shape[1] == 41


@pytest.mark.parametrize("index", ["[]", "{", '{"weight_map": {"a": "../part0.safetensors", "b": 3}}'])
def test_a_damaged_index_brings_no_more(speaking, index):
    (speaking.there / "model.safetensors.index.json").write_text(index)
    with pytest.raises(InputError, match=r"index\.json"):
        open_model("org/small")
    assert len(speaking.asked) == 1


def test_a_directory_comes_before_the_hub(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoints.write(tmp_path / "org" / "small", seed=3)
    assert open_model("org/small").directory.resolve() == tmp_path / "org" / "small" and not hub.asked


def test_what_the_hub_does_not_give_is_one_line(hub):
    with pytest.raises(
        InputError,
        match=r"^org/large: no such directory, and huggingface_hub cannot download it: "
        r"404 Client Error\.: check the name$",
    ):
        open_model("org/large")


@pytest.mark.parametrize(
    "name",
    [
        "./org/small",
        "/org/small",
        "org/small/",
        "org/small/more",
        "org/small@",
        "../small",
        "org/sm all",
        "org/small@-x",
        "https://hub/org/small",
    ],
)
def test_what_is_no_name_of_the_hub_asks_nobody(hub, name):
    with pytest.raises(InputError, match="neither a model that opmatrix fetches"):
        open_model(name)
    assert not hub.asked


def test_without_the_package_the_lines_that_make_a_directory_are_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError) as caught:
        open_model("org/small@v1")
    said = str(caught.value)
    assert "\n" not in said and said.endswith(
        "pip install huggingface_hub; or make a directory: from transformers import AutoModel, AutoTokenizer; "
        "AutoModel.from_pretrained('org/small').save_pretrained('small'); "
        "AutoTokenizer.from_pretrained('org/small').save_pretrained('small')"
    )
    compile(said.partition("make a directory: ")[2], "said", "exec")
