"""Models as transformers saves them, optimised, beside its own hidden states: families at real widths, random BERTs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from lib import command
from lib.command import Figure, Parser, concluded, count, listed, named, tabled, takes, whole

import numpy as np
import plain
from checkpoints import write_tokenizer

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from rewrites.report.results import Result
from rewrites.run import optimize

# ---- widths

WIDTHS_COLUMNS = (
    "family",
    "saved as",
    "sizes",
    "number type",
    "error asked",
    "program",
    "off",
    "stated",
    "seconds",
    "what went wrong",
)
WIDTHS_EXACT = 1e-5  # relative
WIDTHS_NUMBERS = ("float32", "bfloat16", "float16")
WORDS, POSITIONS = 120, 96
ENCODER = dict(vocab_size=WORDS, max_position_embeddings=POSITIONS)
DECODER = ENCODER | dict(rope_theta=1e4)
DISENTANGLED = ENCODER | dict(
    type_vocab_size=0, position_biased_input=False, relative_attention=True, norm_rel_ebd="layer_norm"
)  # as DeBERTa v3 is published
LAYERS = {
    "gpt2": "n_layer",
    "bloom": "n_layer",
    "distilbert": "n_layers",
    "t5": "num_layers",
    "pangu-alpha": "num_layers",
}  # as other configs call them


class Family(NamedTuple):
    """What transformers calls a family's config and its model, nothing where it has none; classes that save it; what
    all its configs say; how its configs call the sizes; what files say otherwise than transformers."""

    config: str
    model: str
    saved: tuple[str, ...]
    common: dict[str, Any]
    sizes: tuple[dict[str, Any], ...]
    says: dict[str, Any]


def encoders(*sizes: tuple[int, int, int], **more: Any) -> tuple[dict[str, Any], ...]:
    return tuple(dict(hidden_size=n, num_attention_heads=h, intermediate_size=f, **more) for n, h, f in sizes)


def decoders(*sizes: tuple[int, int, int, int, int | None], **more: Any) -> tuple[dict[str, Any], ...]:
    """Width, heads, heads of keys, inner width, columns of a head."""
    return tuple(
        dict(hidden_size=n, num_attention_heads=h, num_key_value_heads=g, intermediate_size=f, **more)
        | ({} if d is None else dict(head_dim=d))
        for n, h, g, f, d in sizes
    )


LLAMAS = decoders((576, 9, 3, 1536, None), (960, 15, 5, 2560, None), (768, 12, 1, 2048, None), (768, 12, 12, 3072, 64))
FAMILIES = {
    "bert": Family(
        "BertConfig",
        "BertModel",
        ("BertModel", "BertForMaskedLM"),
        ENCODER,
        encoders((384, 12, 1536), (768, 12, 3072), (312, 12, 1200), (1024, 16, 4096), (128, 2, 512), (64, 1, 64)),
        {},
    ),
    "roberta": Family(
        "RobertaConfig",
        "RobertaModel",
        ("RobertaModel", "RobertaForMaskedLM"),
        ENCODER | dict(pad_token_id=1, type_vocab_size=1),
        encoders((768, 12, 3072), (384, 6, 1536), (1024, 16, 4096)),
        {},
    ),
    "xlm-roberta": Family(
        "XLMRobertaConfig",
        "XLMRobertaModel",
        ("XLMRobertaModel", "XLMRobertaForMaskedLM"),
        ENCODER | dict(pad_token_id=1, type_vocab_size=1),
        encoders((384, 12, 1536), (768, 12, 3072)),
        {},
    ),
    "camembert": Family(
        "CamembertConfig",
        "CamembertModel",
        ("CamembertForMaskedLM", "CamembertModel"),
        ENCODER | dict(pad_token_id=1, type_vocab_size=1),
        encoders((768, 12, 3072), (384, 6, 1536)),
        {},
    ),
    "electra": Family(
        "ElectraConfig",
        "ElectraModel",
        ("ElectraModel", "ElectraForPreTraining"),
        ENCODER,
        encoders((256, 4, 1024), (768, 12, 3072), embedding_size=128) + encoders((384, 6, 1536), embedding_size=384),
        {},
    ),
    "albert": Family(
        "AlbertConfig",
        "AlbertModel",
        ("AlbertModel", "AlbertForMaskedLM"),
        ENCODER,
        encoders((768, 12, 3072), (1024, 16, 4096), embedding_size=128)
        + encoders((384, 6, 1536), embedding_size=64, inner_group_num=2),
        {},
    ),
    "mpnet": Family(
        "MPNetConfig",
        "MPNetModel",
        ("MPNetModel", "MPNetForMaskedLM"),
        ENCODER,
        encoders((768, 12, 3072), (384, 6, 1536)),
        {},
    ),
    "deberta-v2": Family(
        "DebertaV2Config",
        "DebertaV2Model",
        ("DebertaV2Model", "DebertaV2ForMaskedLM"),
        DISENTANGLED,
        encoders((768, 12, 3072), (384, 6, 1536), position_buckets=16, share_att_key=True, pos_att_type=["p2c", "c2p"])
        + encoders((512, 8, 2048), pos_att_type=["c2p"]),
        {},
    ),
    "modernbert": Family(
        "ModernBertConfig",
        "ModernBertModel",
        ("ModernBertModel", "ModernBertForMaskedLM"),
        ENCODER | dict(bos_token_id=0, eos_token_id=1, pad_token_id=0, cls_token_id=0, sep_token_id=1),
        encoders((768, 12, 1152), (384, 6, 576), local_attention=16)
        + encoders((1024, 16, 2624), local_attention=128, layer_types=["sliding_attention"]),
        {},
    ),
    "nomic_bert": Family(
        "NomicBertConfig",
        "NomicBertModel",
        ("NomicBertModel", "NomicBertForMaskedLM"),
        ENCODER,
        encoders((768, 12, 3072), (384, 12, 1536)),
        {},
    ),
    "gte": Family(
        "GteConfig",
        "GteModel",
        ("GteModel", "GteForMaskedLM"),
        ENCODER,
        encoders((768, 12, 3072), type_vocab_size=1) + encoders((384, 12, 1536), type_vocab_size=0),
        {},
    ),
    "gemma3_text": Family(
        "Gemma3TextConfig",
        "Gemma3TextModel",
        ("Gemma3TextModel",),
        ENCODER | dict(query_pre_attn_scalar=256, sliding_window=12, sliding_window_pattern=2),
        decoders((768, 3, 1, 1152, 256), (640, 4, 1, 2048, 256), use_bidirectional_attention=True)
        + decoders((512, 8, 2, 1024, 48)),
        {},
    ),
    "distilbert": Family(
        "DistilBertConfig",
        "DistilBertModel",
        ("DistilBertModel", "DistilBertForMaskedLM"),
        ENCODER,
        (
            dict(dim=768, n_heads=12, hidden_dim=3072),
            dict(dim=512, n_heads=8, hidden_dim=2048),
            dict(dim=768, n_heads=6, hidden_dim=768),
        ),
        {},
    ),
    "gpt2": Family(
        "GPT2Config",
        "GPT2Model",
        ("GPT2Model", "GPT2LMHeadModel"),
        dict(vocab_size=WORDS, n_positions=POSITIONS),
        (
            dict(n_embd=768, n_head=12),
            dict(n_embd=1024, n_head=16),
            dict(n_embd=768, n_head=12, n_inner=2048),
            dict(n_embd=1280, n_head=20),
            dict(n_embd=64, n_head=1),
            dict(n_embd=512, n_head=8, n_inner=512),
        ),
        {},
    ),
    "bloom": Family(
        "BloomConfig",
        "BloomModel",
        ("BloomForCausalLM", "BloomModel"),
        dict(vocab_size=WORDS),
        (dict(hidden_size=768, n_head=12), dict(hidden_size=1024, n_head=16), dict(hidden_size=64, n_head=1)),
        {},
    ),
    "mamba": Family(
        "MambaConfig",
        "MambaModel",
        ("MambaForCausalLM", "MambaModel"),
        dict(vocab_size=WORDS),
        (dict(hidden_size=768), dict(hidden_size=1024), dict(hidden_size=64, state_size=8, use_conv_bias=False)),
        {},
    ),
    "mamba2": Family(
        "Mamba2Config",
        "Mamba2Model",
        ("Mamba2ForCausalLM", "Mamba2Model"),
        dict(vocab_size=WORDS),
        (
            dict(hidden_size=768, num_heads=24, n_groups=1),
            dict(hidden_size=1024, num_heads=32, n_groups=1),
            dict(hidden_size=64, num_heads=4, head_dim=32, n_groups=2, state_size=16, use_conv_bias=False),
        ),
        {},
    ),
    "qwen3_next": Family(
        "Qwen3NextConfig",
        "Qwen3NextModel",
        ("Qwen3NextForCausalLM", "Qwen3NextModel"),
        DECODER | dict(full_attention_interval=2, num_experts=16, num_experts_per_tok=4, moe_intermediate_size=192),
        decoders(
            (512, 8, 2, 1024, 64),
            (768, 12, 4, 768, 128),
            linear_num_key_heads=4,
            linear_num_value_heads=8,
            linear_key_head_dim=64,
            linear_value_head_dim=64,
            shared_expert_intermediate_size=192,
        ),
        {},
    ),
    "qwen3_5_moe_text": Family(
        "Qwen3_5MoeTextConfig",
        "Qwen3_5MoeTextModel",
        ("Qwen3_5MoeForCausalLM",),
        DECODER | dict(full_attention_interval=2, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=256),
        decoders((512, 8, 2, 768, 64), (768, 12, 4, 1024, 64), linear_num_key_heads=4, linear_num_value_heads=4),
        {},
    ),
    "qwen3_5_text": Family(
        "Qwen3_5TextConfig",
        "Qwen3_5TextModel",
        ("Qwen3_5ForCausalLM", "Qwen3_5TextModel"),
        DECODER | dict(full_attention_interval=2),
        decoders((1024, 8, 2, 3584, 256), (768, 12, 4, 2048, 64), linear_num_key_heads=8, linear_num_value_heads=16),
        {},
    ),
    "t5": Family(
        "T5Config",
        "T5EncoderModel",
        ("T5EncoderModel",),
        dict(vocab_size=WORDS),
        (
            dict(d_model=512, num_heads=8, d_kv=64, d_ff=2048),
            dict(d_model=512, num_heads=6, d_kv=64, d_ff=1024, feed_forward_proj="gated-gelu"),
        ),
        {},
    ),
    "llama": Family(
        "LlamaConfig",
        "LlamaModel",
        ("LlamaForCausalLM", "LlamaModel"),
        DECODER,
        LLAMAS
        + decoders(
            (768, 12, 4, 2048, 80),
            (768, 12, 4, 2048, 32),
            (768, 8, 8, 768, 128),
            (1024, 16, 2, 2816, None),
            attention_bias=True,
            mlp_bias=True,
        )
        + decoders((512, 8, 4, 1408, 64), tie_word_embeddings=True),
        {},
    ),
    "mistral": Family(
        "MistralConfig",
        "MistralModel",
        ("MistralForCausalLM", "MistralModel"),
        DECODER,
        decoders((1024, 16, 4, 3584, None), (768, 8, 2, 2048, 128), (768, 12, 4, 2304, 32), sliding_window=16)
        + decoders((640, 10, 5, 1728, None), sliding_window=None),
        {},
    ),
    "qwen2": Family(
        "Qwen2Config",
        "Qwen2Model",
        ("Qwen2ForCausalLM", "Qwen2Model"),
        DECODER,
        decoders(
            (896, 14, 2, 4864, None), (1536, 12, 2, 2048, None), (768, 12, 12, 3072, None), tie_word_embeddings=True
        ),
        {},
    ),
    "qwen3": Family(
        "Qwen3Config",
        "Qwen3Model",
        ("Qwen3ForCausalLM", "Qwen3Model"),
        DECODER,
        decoders((1024, 16, 8, 3072, 128), (768, 12, 4, 2304, 64), (512, 16, 8, 1024, 48), tie_word_embeddings=True),
        {},
    ),
    "cohere": Family(
        "CohereConfig",
        "CohereModel",
        ("CohereForCausalLM", "CohereModel"),
        DECODER | dict(bos_token_id=1, eos_token_id=2),
        decoders((4096, 32, 8, 11008, None)) + decoders((768, 12, 12, 2048, None), use_qk_norm=True),
        {},
    ),
    "cohere2": Family(
        "Cohere2Config",
        "Cohere2Model",
        ("Cohere2ForCausalLM", "Cohere2Model"),
        DECODER | dict(bos_token_id=1, eos_token_id=2, sliding_window=16, sliding_window_pattern=2),
        decoders((4096, 32, 8, 14336, None), (768, 12, 4, 2048, None)),
        {},
    ),
    "gemma2": Family(
        "Gemma2Config",
        "Gemma2Model",
        ("Gemma2ForCausalLM", "Gemma2Model"),
        ENCODER | dict(query_pre_attn_scalar=256, sliding_window=12, attn_logit_softcapping=5.0),
        decoders((2304, 8, 4, 9216, 256), (768, 12, 4, 2048, 64)),
        {},
    ),
    "smollm3": Family(
        "SmolLM3Config",
        "SmolLM3Model",
        ("SmolLM3ForCausalLM", "SmolLM3Model"),
        DECODER | dict(bos_token_id=1, eos_token_id=2, pad_token_id=0, no_rope_layer_interval=2),
        decoders((2048, 16, 4, 11008, None), (768, 12, 4, 2048, None)),
        {},
    ),
    "granite": Family(
        "GraniteConfig",
        "GraniteModel",
        ("GraniteForCausalLM", "GraniteModel"),
        DECODER | dict(embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0, pad_token_id=0),
        decoders((2048, 32, 8, 8192, None), attention_multiplier=0.015625)
        + decoders((768, 12, 4, 2048, None), attention_multiplier=0.125, tie_word_embeddings=True),
        {},
    ),
    "olmo2": Family(
        "Olmo2Config",
        "Olmo2Model",
        ("Olmo2ForCausalLM", "Olmo2Model"),
        DECODER | dict(pad_token_id=0),
        decoders((2048, 16, 16, 8192, None), (768, 12, 4, 2048, None)),
        {},
    ),
    "phi3": Family(
        "Phi3Config",
        "Phi3Model",
        ("Phi3ForCausalLM", "Phi3Model"),
        DECODER | dict(pad_token_id=0),
        decoders((3072, 24, 8, 8192, None), partial_rotary_factor=0.75)
        + decoders((768, 12, 12, 2048, None), sliding_window=16),
        {},
    ),
    "gpt_oss": Family(
        "GptOssConfig",
        "GptOssModel",
        ("GptOssForCausalLM", "GptOssModel"),
        DECODER | dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=16),
        decoders((2880, 64, 8, 2880, 64), (768, 12, 4, 512, 32)),
        {},
    ),
    "mixtral": Family(
        "MixtralConfig",
        "MixtralModel",
        ("MixtralForCausalLM", "MixtralModel"),
        DECODER,
        decoders(
            (512, 8, 2, 896, None),
            (768, 12, 4, 512, None),
            num_local_experts=8,
            num_experts_per_tok=2,
            sliding_window=None,
        ),
        {},
    ),
    "qwen2_moe": Family(
        "Qwen2MoeConfig",
        "Qwen2MoeModel",
        ("Qwen2MoeForCausalLM", "Qwen2MoeModel"),
        DECODER,
        decoders(
            (512, 8, 2, 1024, None),
            (768, 12, 12, 768, None),
            moe_intermediate_size=256,
            num_experts=12,
            num_experts_per_tok=4,
            shared_expert_intermediate_size=640,
            norm_topk_prob=False,
        ),
        {},
    ),
    "qwen3_moe": Family(
        "Qwen3MoeConfig",
        "Qwen3MoeModel",
        ("Qwen3MoeForCausalLM", "Qwen3MoeModel"),
        DECODER,
        decoders(
            (512, 8, 4, 1024, 64),
            (768, 12, 4, 768, 32),
            moe_intermediate_size=192,
            num_experts=16,
            num_experts_per_tok=4,
            norm_topk_prob=True,
        ),
        {},
    ),
    "openpangu": Family(
        "LlamaConfig",
        "LlamaModel",
        ("LlamaForCausalLM",),
        DECODER | dict(attention_bias=True),
        decoders((1536, 12, 12, 2048, None), (768, 12, 4, 2048, None)),
        dict(model_type="PanguEmbedded", bias=True),
    ),
    "pangu-alpha": Family(
        "",
        "",
        ("GPTPanguForCausalLM", "GPTPanguModel"),
        dict(vocab_size=WORDS, max_position_embeddings=POSITIONS, layer_norm_epsilon=1e-5),
        (
            dict(hidden_size=768, num_heads=12),
            dict(hidden_size=1024, num_heads=16),
            dict(hidden_size=960, num_heads=5, intermediate_size=1000),
            dict(hidden_size=2560, num_heads=32),
        ),
        dict(model_type="gpt_pangu"),
    ),
}


class WidthsCase(NamedTuple):
    """One model: its family, its sizes, its layers, the class that saves it, its number type."""

    family: str
    sizes: dict[str, Any]
    layers: int
    saved: str
    number: str

    def config(self) -> dict[str, Any]:
        return FAMILIES[self.family].common | self.sizes | {LAYERS.get(self.family, "num_hidden_layers"): self.layers}


def cases(families: list[str], each: int = 100) -> Iterator[WidthsCase]:
    """The sizes of every family, so many of each."""
    for name in families:
        family = FAMILIES[name]
        for at, sizes in enumerate(family.sizes[:each]):
            yield WidthsCase(name, sizes, 1 + at % 2, family.saved[at % len(family.saved)], WIDTHS_NUMBERS[at % 3])


def widths_write(made: WidthsCase, directory: Path, seed: int) -> None:
    """What transformers saves for a case, or would of Pangu-alpha, and a tokenizer."""
    import torch
    import transformers
    from safetensors.torch import save_file

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(seed)
    family, number = FAMILIES[made.family], getattr(torch, made.number)
    if family.config:
        model = getattr(transformers, made.saved)(getattr(transformers, family.config)(**made.config()))
        draw(model.named_parameters())
        model.to(number).save_pretrained(directory)
    else:
        tensors = {name: torch.empty(shape) for name, shape in pangu_alpha(made.config()).items()}
        draw(tensors.items())
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(made.config() | dict(architectures=[made.saved])))
        save_file({name: each.to(number) for name, each in tensors.items()}, directory / "model.safetensors")
    write_tokenizer(directory / "tokenizer.json")


def draw(parameters: Iterable[tuple[str, Any]]) -> None:
    """Numbers for the parameters of a model, by name."""
    import torch

    for name, parameter in parameters:
        gain = parameter.ndim == 1 and name.endswith("weight")
        scale = (
            0.2
            if parameter.ndim == 1
            else 1.0
            if parameter.shape[0] in (WORDS, POSITIONS)
            else 3 * (sum(parameter.shape) / 2) ** -0.5
        )
        torch.nn.init.normal_(parameter, mean=float(gain), std=scale)


def pangu_alpha(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors of a Pangu-alpha, with their shapes (Zeng et al. 2021, section 3; a weight is out by in)."""
    n = config["hidden_size"]
    f, parts = config.get("intermediate_size") or 4 * n, ["ln_f"]
    found = {"wte.weight": (WORDS, n), "wpe.weight": (POSITIONS, n), "wqe.weight": (POSITIONS, n)}
    for layer in (f"h.{l}" for l in range(config["num_layers"])):
        parts += [f"{layer}.ln_1", f"{layer}.ln_2"]
        for name, p, q in (*((f"attn.{part}_proj", n, n) for part in "qkvc"), ("mlp.c_fc", f, n), ("mlp.c_proj", n, f)):
            found |= {f"{layer}.{name}.weight": (p, q), f"{layer}.{name}.bias": (p,)}
    return found | {f"{part}.{kind}": (n,) for part in parts for kind in ("weight", "bias")}


def renamed(made: WidthsCase, directory: Path) -> None:
    """The config as the family's own files have it, where transformers has the family under another's name."""
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | FAMILIES[made.family].says))


def states(made: WidthsCase, directory: Path, rows: list[np.ndarray]) -> np.ndarray:
    """What transformers computes in float32, or plain numpy in float64, one sentence after another: the scores of a
    decoder's file that has a head for them, else the last hidden states."""
    import torch
    import transformers
    from safetensors.torch import load_file

    scores = made.saved.endswith(("ForCausalLM", "LMHeadModel"))
    if not FAMILIES[made.family].config:
        w = {name: each.double().numpy() for name, each in load_file(directory / "model.safetensors").items()}
        hidden = np.concatenate([plain.pangu_alpha(made.config(), w, row) for row in rows])
        return hidden @ w["wte.weight"].T if scores else hidden
    kind = getattr(transformers, made.saved if scores else FAMILIES[made.family].model)
    model = kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    model.config.use_cache = False  # transformers has none for layers of states alone
    for module in model.modules():
        if hasattr(module, "embed_scale"):  # of the number type of the files
            module.embed_scale.copy_(module.embed_scale.to(getattr(torch, made.number)))
    with torch.no_grad():
        every = [model(torch.from_numpy(row)[None]) for row in rows]
    return np.concatenate([(each.logits if scores else each.last_hidden_state)[0].numpy() for each in every])


def widths_sentences(seed: int) -> list[np.ndarray]:
    """Rows of ids, from one to as many as every family has positions for, none the padding's."""
    rng = np.random.default_rng(seed)
    return [rng.integers(2, WORDS, length) for length in (1, 2, 7, 33, POSITIONS - 2, 17)]


class Found(NamedTuple):
    """What `optimize` answered: the program's name, how far off it is and states to be."""

    program: str
    off: float
    stated: float


def widths_compared(
    made: WidthsCase, directory: Path, error: float, wanted: np.ndarray, rows: list[np.ndarray]
) -> Found:
    best = optimize(str(directory), error=error, tokens=16, rounds=3, output="rows").best
    return Found(best.name, change(best.program.run(Batch(rows)), wanted), float(best.stated_error or 0))


def right(found: Found, error: float) -> bool:
    """As near as is asked for: exactly, or within what is stated, twice that on other sentences."""
    return found.off <= max(WIDTHS_EXACT, 2 * found.stated if error else 0)


def ran(made: WidthsCase, seed: int, errors: list[float]) -> Iterator[tuple[bool, tuple[Any, ...]]]:
    """Whether it is right, and a row of the table, for each error."""
    with TemporaryDirectory() as place:
        directory, rows = Path(place) / "model", widths_sentences(seed)
        widths_write(made, directory, seed)
        wanted = states(made, directory, rows)
        renamed(made, directory)
        for error in errors:
            start = time.perf_counter()
            try:
                found, why = widths_compared(made, directory, error, wanted, rows), ""
            except (InputError, TypeError, ValueError, KeyError, IndexError, AssertionError) as fault:
                found, why = Found("", np.inf, 0.0), f"{type(fault).__name__}: {fault}"[:300].replace("\n", " ")
            sizes = " ".join(f"{name}={value}" for name, value in made.sizes.items())
            yield (
                right(found, error),
                (
                    made.family,
                    made.saved,
                    f"{made.layers} x {sizes}",
                    made.number,
                    f"{error:g}",
                    found.program,
                    f"{found.off:.1e}",
                    f"{found.stated:.1e}",
                    f"{time.perf_counter() - start:.0f}",
                    why,
                ),
            )


def measure_widths() -> int:
    """Optimise every family at the widths that people have, as transformers saves it, beside transformers' own hidden
    states, or scores where a decoder's file has a head for them, in float32.

        python benchmarks/widths.py [--families gpt2,llama] [--each 9] [--errors 0,0.02] [--csv OUT]

    Random parameters (three times as large as training starts from, biases that are not zero), small vocabularies,
    one or two layers; heads, grouped keys, heads wider and narrower than width / heads, windows, tied and untied
    scores, number types. openPangu is a LLaMA with biases under its own name; Pangu-alpha, which is none of
    transformers' models, is written by the names of its port and stands beside tests/support/plain.py, in float64.
    `off` is the relative change (Frobenius) of the program that `optimize` answers with, on sentences from one
    token to all positions; an exact one further off than 1e-5, or another one further off than it states (twice on
    sentences that are nothing like those it was judged on), ends with status 1, as does an error."""
    parser = Parser(measure_widths)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--each", type=count, default=100, help="sizes of each family")
    parser.add_argument("--errors", default="0,0.02")
    given = parser.parse_args()
    names, errors = listed(given.families), [float(each) for each in listed(given.errors)]
    named("families", names, FAMILIES)
    chosen = [*cases(names, given.each)]
    takes(20 * len(chosen) * len(errors))
    rows, wrong = [], 0
    print("  ".join(WIDTHS_COLUMNS))
    for number, made in enumerate(chosen):
        for good, row in ran(made, number, errors):
            wrong += not good
            rows.append(row)
            print("  ".join(map(str, row)), flush=True)
    tabled(given.csv, [WIDTHS_COLUMNS, *rows])
    exact = [float(row[6]) for row in rows if row[4] == "0"]
    concluded(
        given,
        [
            Figure(f"programs of {len(rows)} that are not what transformers computes", wrong, most=0),
            Figure("largest relative change of an exact program", max(exact, default=0.0), most=WIDTHS_EXACT),
        ],
    )
    return int(bool(wrong))


# ---- berts

BERTS_COLUMNS = (
    "model",
    "saved as",
    "layers x width",
    "heads",
    "inner",
    "tokens",
    "activation",
    "eps",
    "number type",
    "numbers",
    "files",
    "exact",
    "chosen",
    "program",
    "seconds",
)
BERTS_EXACT, DEFAULT = 1e-5, 0.02  # relative
SAVED = (
    "BertModel",
    "BertForMaskedLM",
    "BertForPreTraining",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
    "BertLMHeadModel",
)
BERTS_NUMBERS = ("float32", "float16", "bfloat16")
FILLED = ("fresh", "zero biases", "random", "random")


class BertsCase(NamedTuple):
    """One model: the class that saves it, its config, its number type, how its parameters are filled, its files."""

    saved: str
    config: dict[str, Any]
    number: str
    filled: str
    files: str


def case(number: int) -> BertsCase:
    """The choices of one model; every list is walked through, what is left is drawn."""
    rng = np.random.default_rng(number)
    heads, saved = int(rng.integers(1, 9)), SAVED[number % len(SAVED)]
    acts = "gelu", "gelu_new", "relu", "silu", "tanh", "gelu_pytorch_tanh"
    config = dict(
        hidden_size=heads * int(rng.choice([1, 4, 6, 8, 12, 16, 32])),
        num_attention_heads=heads,
        num_hidden_layers=1 + number % 4,
        intermediate_size=int(rng.integers(5, 300)),
        hidden_act=acts[number % len(acts)],
        vocab_size=int(rng.integers(50, 1200)),
        type_vocab_size=1 + number % 2,
        max_position_embeddings=int(rng.integers(64, 140)),
        layer_norm_eps=float(rng.choice([1e-5, 1e-6, 1e-7, 1e-12])),
        is_decoder=saved == "BertLMHeadModel",
    )
    return BertsCase(
        saved, config, BERTS_NUMBERS[number % 3], FILLED[number // 2 % 4], "shards" if number % 5 == 3 else "one"
    )


def berts_write(made: BertsCase, directory: Path, seed: int) -> None:
    """What transformers saves for a case, and a tokenizer."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(seed)
    model = getattr(transformers, made.saved)(transformers.BertConfig(**made.config))
    for name, parameter in model.named_parameters():
        gain = name.endswith("LayerNorm.weight")
        if made.filled == "fresh" or (made.filled == "zero biases" and parameter.ndim == 1 and not gain):
            continue
        scale = 0.1 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
        torch.nn.init.normal_(parameter, mean=float(gain), std=scale)
    model.to(getattr(torch, made.number))
    size = sum(parameter.nbytes for parameter in model.parameters())
    model.save_pretrained(directory, max_shard_size=size // 3 if made.files == "shards" else size + 1)
    write_tokenizer(directory / "tokenizer.json")


def berts_sentences(made: BertsCase, seed: int) -> list[np.ndarray]:
    """Rows of ids of several lengths, from one to as many as there are positions."""
    rng, longest = np.random.default_rng(seed), made.config["max_position_embeddings"]
    return [rng.integers(0, made.config["vocab_size"], length) for length in (1, 2, 3, 7, longest // 2, longest, 13)]


def hidden(directory: Path, rows: list[np.ndarray]) -> np.ndarray:
    """transformers' last hidden states in float32, one sentence after another."""
    import torch
    import transformers

    model = transformers.BertModel.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        return np.concatenate([model(torch.from_numpy(row)[None]).last_hidden_state[0].numpy() for row in rows])


def change(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def berts_compared(number: int, directory: Path, error: float = 0.0) -> tuple[BertsCase, Result, float, float]:
    """One model optimised: what it is, what was found, how far its exact and its chosen program are from
    transformers."""
    made = case(number)
    berts_write(made, directory, number)
    result = optimize(str(directory), error=error, tokens=16, rounds=3, output="rows")
    rows = berts_sentences(made, number)
    wanted = hidden(directory, rows)
    return made, result, *(change(point.program.run(Batch(rows)), wanted) for point in (result.points[0], result.best))


def row(number: int, made: BertsCase, result: Result, exact: float, chosen: float, seconds: float) -> tuple[Any, ...]:
    c = made.config
    return (
        number,
        made.saved,
        f"{c['num_hidden_layers']} x {c['hidden_size']}",
        c["num_attention_heads"],
        c["intermediate_size"],
        c["vocab_size"],
        c["hidden_act"],
        f"{c['layer_norm_eps']:g}",
        made.number,
        made.filled,
        made.files,
        f"{exact:.1e}",
        f"{chosen:.1e}",
        result.best.name,
        f"{seconds:.1f}",
    )


def measure_berts() -> int:
    """Optimise random BERTs as transformers saves them, beside transformers' own hidden states in float32.

        python benchmarks/widths.py berts [--models 30] [--first 0] [--csv OUT]

    Sizes, heads, activations, number types, biases (zeros and gains of one as a library initialises them, or
    random), shards, heads on top, with and without a pooler. Every fourth is searched within the default error, the
    others exactly. `exact` is the relative change (Frobenius) of the exact program's output on sentences of several
    lengths, `chosen` that of the program that `optimize` answers with; an exact program further off than 1e-5, or a
    chosen one further off than twice what was asked for on other sentences, ends with status 1."""
    parser = Parser(measure_berts)
    parser.add_argument("--models", type=count, default=30)
    parser.add_argument("--first", type=whole, default=0)
    given = parser.parse_args()
    takes(7 * given.models)
    rows, wrong, off = [], 0, [0.0]
    print("  ".join(BERTS_COLUMNS))
    for number in range(given.first, given.first + given.models):
        start, error = time.perf_counter(), DEFAULT if number % 4 == 3 else 0.0
        with TemporaryDirectory() as place:
            made, result, exact, chosen = berts_compared(number, Path(place) / "model", error)
        off.append(exact)
        wrong += not (exact <= BERTS_EXACT and chosen <= max(2 * error, BERTS_EXACT))
        rows.append(row(number, made, result, exact, chosen, time.perf_counter() - start))
        print("  ".join(map(str, rows[-1])), flush=True)
    tabled(given.csv, [BERTS_COLUMNS, *rows])
    concluded(
        given,
        [
            Figure(f"models of {len(rows)} that are too far off transformers", wrong, most=0),
            Figure("largest relative change of an exact program", max(off), most=BERTS_EXACT),
        ],
    )
    return int(bool(wrong))


if __name__ == "__main__":
    command.run_parts(measure_widths, measure_berts)
