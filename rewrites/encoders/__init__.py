"""Encoders by the calls of sentence-transformers: embeddings and scores of texts by exact programs."""
