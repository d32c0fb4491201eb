"""What is built around programs: texts in and embeddings out, sessions."""
