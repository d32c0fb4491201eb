"""Families of encoders: every token of a text sees the others, before it and behind it."""
