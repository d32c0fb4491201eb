"""Files about texts in a model's directory, beside its weights and its config."""
