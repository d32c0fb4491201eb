"""Names of the files that are read from the directory of a model, for reading them and for fetching a model by its name
on the hub. They hold numbers and JSON alone; code is neither read nor fetched."""

CONFIG, GENERATION = "config.json", "generation_config.json"
WEIGHTS, INDEX, SHARDS = "model.safetensors", "model.safetensors.index.json", "model-*.safetensors"
CHAT_TEMPLATE, CHAT_TEMPLATES = "chat_template.jinja", "additional_chat_templates/*.jinja"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
SPECIAL_TOKENS, ADDED_TOKENS = "special_tokens_map.json", "added_tokens.json"
MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
TRANSFORMER = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
MODULE = "*/config.json"  # modules.json gives the names of the folders
DENSE = "*/model.safetensors"  # weights of a Dense layer

# shards of other names are fetched once the index has named them
FETCHED = (
    CONFIG,
    GENERATION,
    WEIGHTS,
    INDEX,
    SHARDS,
    TOKENIZER,
    TOKENIZER_CONFIG,
    CHAT_TEMPLATE,
    CHAT_TEMPLATES,
    SPECIAL_TOKENS,
    ADDED_TOKENS,
    MODULES,
    PROMPTS,
    *TRANSFORMER,
    MODULE,
    DENSE,
)
