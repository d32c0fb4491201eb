"""A LLaMA of transformers with the numbers of a checkpoint, as we read them; tests/peers/test_gguf_files.py holds these
against its own reader. Greedy texts beside what it would write."""

import numpy as np

TOKENS, EQUAL = 64, 1e-3  # of a reply; two scores as good as equal
PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "def add(a, b):",
    "2 + 2 =",
    "Water boils at",
    "The opposite of hot is",
    "My favourite colour is",
    "In 1969, people",
    "The largest planet is",
    "Dear Sir,",
    "A haiku about rain:",
    "To make bread you need",
    "The three laws of motion",
    "Bonjour, je",
    "SELECT name FROM",
    "The history of mathematics",
    "She opened the door and",
    "An atom consists of",
    "1, 2, 3, 4,",
    "The moon is",
]


def llama_of(checkpoint):
    """In float32, ready to be asked."""
    import torch
    import transformers

    said = {key: value for key, value in checkpoint.said.items() if value is not None and "rope" not in key}
    rope = dict(rope_type="default", rope_theta=checkpoint.config["rope_theta"])
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**said, rope_parameters=rope)).eval()
    numbers = {
        name: torch.tensor(checkpoint.find(name.removeprefix("model.")).read())
        for name in model.state_dict()
        if name != "lm_head.weight" or not checkpoint.said["tie_word_embeddings"]
    }
    lost = model.load_state_dict(numbers, strict=False)
    assert not lost.unexpected_keys and {*lost.missing_keys} <= {"lm_head.weight"}
    model.tie_weights()
    return model


def replies_beside(checkpoint, program):
    """Each prompt's greedy reply, and the likeliest tokens by transformers' scores of all rows at once, of our tokens:
    up to the first where two are as good as equal, as texts may differ from there on."""
    import torch

    model = llama_of(checkpoint)
    for reply in program.replace(ends=[]).generate(PROMPTS, max_tokens=TOKENS):
        ids = [*reply.prompt, *reply.ids]
        with torch.no_grad():
            scores = model(torch.tensor([ids])).logits[0, len(reply.prompt) - 1 : -1].numpy()
        best = np.sort(scores, 1)[:, -2:]
        near = np.flatnonzero(best[:, 1] - best[:, 0] < EQUAL)
        yield reply, scores.argmax(1)[: int(near[0]) if len(near) else TOKENS].tolist()
