"""Attention, which mixes rows: in one pass and in three, masked, over caches."""
