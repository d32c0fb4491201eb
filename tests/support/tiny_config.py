"""A BERT of two layers, six columns wide."""

CONFIG = dict(
    model_type="bert",
    hidden_act="gelu",
    hidden_size=6,
    intermediate_size=10,
    layer_norm_eps=1e-3,
    num_attention_heads=3,
    num_hidden_layers=2,
    max_position_embeddings=7,
    type_vocab_size=2,
    vocab_size=11,
)
