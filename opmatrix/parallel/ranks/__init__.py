"""Ranks that run in one process: generators of their steps, merged in the order of ranks."""
