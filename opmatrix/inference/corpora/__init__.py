"""Embeddings of corpora: runs over files of many lines that go on after an interruption, in shards that are joined."""
