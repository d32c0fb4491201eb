"""Programs as checkpoints again: directories of a class of transformers, with numbers or with quantised ones, and GGUF
files."""
