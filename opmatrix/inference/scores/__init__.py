"""Texts and pairs of texts, and the scores that models give them."""
