"""Trains the small language models of tests/data: a GPT-2, a Pangu-alpha and a Mixtral over bytes, on the help texts
that Python ships. No others of these families are at hand whose weights may be kept.

    python tests/support/train_models.py [STEPS] [FOLDER] [FAMILY,..]    of each; minutes on one processor; needs torch

Held out are the last 64 KiB of the text, which differs from version to version of Python, so it is kept, too."""

import json
import sys
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn import functional as F

FOLDER, HELD_OUT, SEED = Path(__file__).parents[1] / "data", 1 << 16, 0
WIDE, LAYERS, HEADS, WINDOW, VOCABULARY = 96, 4, 4, 128, 256
THIN, EXPERTS, ASKED, KEYS, TURNS = 64, 8, 2, 2, 1e4  # of the Mixtral: its width, and that of each expert
BALANCE = 0.01  # how much it counts that experts are asked alike
STEPS, BATCH, RATE, WARM = 1200, 16, 3e-3, 100  # windows of a step; the highest rate, and steps before it
CONFIGS = {
    "gpt2": dict(
        model_type="gpt2",
        architectures=["GPT2LMHeadModel"],
        vocab_size=VOCABULARY,
        n_embd=WIDE,
        n_positions=WINDOW,
        n_head=HEADS,
        n_layer=LAYERS,
        layer_norm_epsilon=1e-5,
        activation_function="gelu_new",
    ),
    "pangu": dict(
        model_type="gpt_pangu",
        architectures=["GPTPanguForCausalLM"],
        vocab_size=VOCABULARY,
        hidden_size=WIDE,
        max_position_embeddings=WINDOW,
        num_heads=HEADS,
        num_layers=LAYERS,
        layer_norm_epsilon=1e-5,
        activation_function="gelu",
    ),
    "mixtral": dict(
        model_type="mixtral",
        architectures=["MixtralForCausalLM"],
        vocab_size=VOCABULARY,
        hidden_size=THIN,
        intermediate_size=THIN,
        max_position_embeddings=WINDOW,
        num_attention_heads=HEADS,
        num_key_value_heads=KEYS,
        num_hidden_layers=LAYERS,
        num_local_experts=EXPERTS,
        num_experts_per_tok=ASKED,
        rms_norm_eps=1e-5,
        rope_theta=TURNS,
        hidden_act="silu",
        tie_word_embeddings=True,
    ),
}


def text() -> bytes:
    """All help texts, by name; what is not ASCII is left out, so a letter is a byte."""
    return "\n\n".join(topics[name] for name in sorted(topics)).encode("ascii", "ignore")


def shapes(family: str) -> dict[str, tuple[int, ...]]:
    """Of the weights, by their names in files; experts are side by side while they are trained."""
    if family == "mixtral":
        return mixtral_shapes()

    def linear(name, n, p):
        return {f"{name}.weight": (n, p) if family == "gpt2" else (p, n), f"{name}.bias": (p,)}

    def norm(name):
        return {f"{name}.weight": (WIDE,), f"{name}.bias": (WIDE,)}

    found = {"wte.weight": (VOCABULARY, WIDE), "wpe.weight": (WINDOW, WIDE), **norm("ln_f")}
    if family == "pangu":
        found["wqe.weight"] = WINDOW, WIDE
    for l in (f"h.{i}" for i in range(LAYERS)):
        parts = {"c_attn": 3 * WIDE} if family == "gpt2" else {f"{part}_proj": WIDE for part in "qkv"}
        for part, outputs in parts.items():
            found |= linear(f"{l}.attn.{part}", WIDE, outputs)
        found |= linear(f"{l}.attn.c_proj", WIDE, WIDE) | norm(f"{l}.ln_1") | norm(f"{l}.ln_2")
        found |= linear(f"{l}.mlp.c_fc", WIDE, 4 * WIDE) | linear(f"{l}.mlp.c_proj", 4 * WIDE, WIDE)
    return found


def mixtral_shapes() -> dict[str, tuple[int, ...]]:
    found = {"embed_tokens.weight": (VOCABULARY, THIN), "norm.weight": (THIN,)}
    for l in (f"layers.{i}" for i in range(LAYERS)):
        found |= {f"{l}.{part}_layernorm.weight": (THIN,) for part in ("input", "post_attention")}
        found |= {
            f"{l}.self_attn.{part}_proj.weight": (outputs, THIN)
            for part, outputs in zip("qkvo", (THIN, THIN * KEYS // HEADS, THIN * KEYS // HEADS, THIN), strict=True)
        }
        found[f"{l}.block_sparse_moe.gate.weight"] = EXPERTS, THIN
        found |= {f"{l}.block_sparse_moe.experts.{part}": (EXPERTS, THIN, THIN) for part in ("w1", "w2", "w3")}
    return found


def started(family: str) -> dict[str, torch.Tensor]:
    """Weights before training: normal, those that are added to the residual smaller (Radford et al. 2019)."""
    made = {}
    for name, shape in shapes(family).items():
        if name.endswith(".bias"):
            made[name] = torch.zeros(shape)
        elif ".ln_" in name or name.startswith("ln_f") or "norm" in name:
            made[name] = torch.ones(shape)
        else:
            made[name] = (
                torch.randn(shape)
                * (0.02 if name[0] in "we" else 0.08)
                / ((2 * LAYERS) ** 0.5 if name.split(".")[-2:][0] in ("c_proj", "o_proj") or name.endswith("w2") else 1)
            )
    return {name: each.requires_grad_() for name, each in made.items()}


def mixtral_scores(w: dict[str, torch.Tensor], tokens: torch.Tensor, uneven: list[torch.Tensor]) -> torch.Tensor:
    """`uneven` is given how unlike each layer asks its experts: 1 where all are asked alike (Fedus et al. 2022, eq.
    4)."""
    count, rows = tokens.shape
    d = THIN // HEADS
    angles = torch.outer(torch.arange(rows), TURNS ** (-torch.arange(0, d, 2) / d)).repeat(1, 2)

    def norm(x, name):
        return F.rms_norm(x, (THIN,), w[f"{name}.weight"], 1e-5)

    def heads(x, name):
        return F.linear(x, w[f"{name}_proj.weight"]).unflatten(-1, (-1, d)).transpose(1, 2)

    def turned(x):
        a, b = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-b, a], -1) * angles.sin()

    x = w["embed_tokens.weight"][tokens]
    for l in (f"layers.{i}" for i in range(LAYERS)):
        normed, name = norm(x, f"{l}.input_layernorm"), f"{l}.self_attn"
        q, k, v = turned(heads(normed, f"{name}.q")), turned(heads(normed, f"{name}.k")), heads(normed, f"{name}.v")
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + F.linear(mixed.transpose(1, 2).flatten(2), w[f"{name}.o_proj.weight"])
        normed, name = norm(x, f"{l}.post_attention_layernorm").flatten(0, 1), f"{l}.block_sparse_moe"
        shares = F.linear(normed, w[f"{name}.gate.weight"]).softmax(-1)
        best, chosen = shares.topk(ASKED, -1)
        gates, mixed = best / best.sum(-1, keepdim=True), torch.zeros_like(normed)
        for e in range(EXPERTS):
            at, place = torch.where(chosen == e)
            up, down, beside = (w[f"{name}.experts.{part}"][e].T for part in ("w1", "w2", "w3"))
            own = normed[at]
            mixed = mixed.index_add(0, at, (F.silu(own @ up) * (own @ beside)) @ down * gates[at, place, None])
        x = x + mixed.unflatten(0, (count, rows))
        uneven.append(EXPERTS * (F.one_hot(chosen, EXPERTS).float().mean((0, 1)) @ shares.mean(0)))
    return norm(x, "norm") @ w["embed_tokens.weight"].T


def scores(
    family: str, w: dict[str, torch.Tensor], tokens: torch.Tensor, uneven: list[torch.Tensor] | None = None
) -> torch.Tensor:
    """Scores of the byte that follows each, (windows, rows, 256); plain.py and plain_experts.py write the same in
    numpy."""
    if family == "mixtral":
        return mixtral_scores(w, tokens, [] if uneven is None else uneven)

    def linear(x, name):
        return F.linear(x, w[f"{name}.weight"].T if family == "gpt2" else w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x, name):
        return F.layer_norm(x, (WIDE,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    def heads(x):
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    count, rows = tokens.shape
    x = w["wte.weight"][tokens] + w["wpe.weight"][:rows]
    for i in range(LAYERS):
        l, last = f"h.{i}", family == "pangu" and i == LAYERS - 1
        if last:
            x = norm(x, "ln_f")
        normed = norm(x, f"{l}.ln_1")
        if family == "gpt2":
            q, k, v = linear(normed, f"{l}.attn.c_attn").split(WIDE, -1)
        else:
            asking = w["wqe.weight"][:rows].expand(count, -1, -1) if last else normed
            q, k, v = (
                linear(y, f"{l}.attn.{part}_proj") for part, y in zip("qkv", (asking, normed, normed), strict=True)
            )
        mixed = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), is_causal=True)
        x = x + linear(mixed.transpose(1, 2).flatten(2), f"{l}.attn.c_proj")
        up = linear(norm(x, f"{l}.ln_2"), f"{l}.mlp.c_fc")
        x = x + linear(F.gelu(up, approximate="tanh" if family == "gpt2" else "none"), f"{l}.mlp.c_proj")
    return (norm(x, "ln_f") if family == "gpt2" else x) @ w["wte.weight"].T


def trained(family: str, train: torch.Tensor, steps: int) -> tuple[dict[str, torch.Tensor], float]:
    """Weights, and the mean loss of the last hundred steps."""
    torch.manual_seed(SEED)
    w, losses, rng = started(family), [], np.random.default_rng(SEED)
    decayed = [each for each in w.values() if each.ndim > 1]
    optimiser = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": 0.1},
            {"params": [each for each in w.values() if each.ndim < 2], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.98),
    )
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / WARM) * (0.02 + np.cos(np.pi / 2 * step / steps) ** 2)
        starts = rng.integers(0, len(train) - WINDOW - 1, BATCH)
        batch = torch.stack([train[at : at + WINDOW + 1] for at in starts])
        found = scores(family, w, batch[:, :-1], uneven := [])
        loss = F.cross_entropy(found.flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        (loss + BALANCE * sum(uneven)).backward()
        torch.nn.utils.clip_grad_norm_([*w.values()], 1.0)
        optimiser.step()
        losses.append(loss.item())
        if not step % 100:
            print(f"{family} {step:5} {np.mean(losses[-100:]):.4f}", flush=True)
    return w, float(np.mean(losses[-100:]))


def tokenizer() -> Tokenizer:
    """Each byte is a token, by its own number."""
    letters = models.BPE(vocab={letter: at for at, letter in enumerate(byte_letters())}, merges=[])
    made = Tokenizer(letters)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


def byte_letters() -> list[str]:
    """What a byte is written as (Radford et al. 2019): as its letter, or where that cannot be seen, as one beyond."""
    seen, beyond = {*range(33, 127), *range(161, 173), *range(174, 256)}, iter(range(256, 512))
    return [chr(byte) if byte in seen else chr(next(beyond)) for byte in range(256)]


def apart(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """As files have it: experts one by one."""
    stem, experts, part = name.partition(".experts.")
    return {f"{stem}{experts}{e}.{part}.weight": one for e, one in enumerate(array)} if experts else {name: array}


def main(steps: str = str(STEPS), folder: str = str(FOLDER), families: str = ",".join(CONFIGS)) -> None:
    torch.set_num_threads(1)  # so that another run gives the same
    whole, folder = text(), Path(folder)
    train, held_out = torch.tensor([*whole[:-HELD_OUT]]), whole[-HELD_OUT:]
    folder.mkdir(exist_ok=True)
    (folder / "held_out.txt").write_bytes(held_out)
    record = {
        "text": "pydoc_data.topics",
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "seed": SEED,
        "training_bytes": len(train),
        "held_out_bytes": len(held_out),
        "models": {},
    }
    if (file := folder / "record.json").exists() and families != ",".join(CONFIGS):
        record["models"] = json.loads(file.read_text())["models"]  # of those that are left as they are
    for family, config in ((family, CONFIGS[family]) for family in families.split(",")):
        w, loss = trained(family, train, int(steps))
        (place := folder / f"{family}_bytes").mkdir(exist_ok=True)
        arrays = {name: each.detach().numpy().astype(np.float16) for name, each in w.items()}
        save_file(
            {name: one for whole in arrays for name, one in apart(whole, arrays[whole]).items()},
            place / "model.safetensors",
        )
        (place / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        (place / "tokenizer.json").write_text(tokenizer().to_str() + "\n")
        with torch.no_grad():
            rows = torch.tensor([*held_out]).view(-1, WINDOW)
            stored = {name: torch.tensor(each.astype(np.float32)) for name, each in arrays.items()}
            own = F.cross_entropy(scores(family, stored, rows)[:, :-1].flatten(0, 1), rows[:, 1:].flatten()).item()
        record["models"][family] = {
            "parameters": sum(each.size for each in arrays.values()),
            "steps": int(steps),
            "batch": BATCH,
            "window": WINDOW,
            "training_loss": loss,
            "held_out_nats": own,
        }
        print(family, record["models"][family])
    file.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:4])
