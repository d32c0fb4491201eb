"""What the files of a model's directory say about texts, beside its weights and its config."""
