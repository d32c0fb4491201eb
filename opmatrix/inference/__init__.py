"""Uses of programs: texts in and embeddings out, sessions."""
