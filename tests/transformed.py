"""A LLaMA of transformers with the numbers of a checkpoint, as we read them; tests/peers/test_gguf_files.py holds these
against its own reader."""


def llama_of(checkpoint):
    """In float32, ready to be asked."""
    import torch
    import transformers
    said = {key: value for key, value in checkpoint.said.items() if value is not None and "rope" not in key}
    rope = dict(rope_type="default", rope_theta=checkpoint.config["rope_theta"])
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**said, rope_parameters=rope)).eval()
    numbers = {name: torch.tensor(checkpoint.find(name.removeprefix("model.")).read()) for name in model.state_dict()
               if name != "lm_head.weight" or not checkpoint.said["tie_word_embeddings"]}
    lost = model.load_state_dict(numbers, strict=False)
    assert not lost.unexpected_keys and {*lost.missing_keys} <= {"lm_head.weight"}
    model.tie_weights()
    return model
