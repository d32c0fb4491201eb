"""Rewrites explored: classes, members with prices, the laws that fired and why; the effect of a law, a machine or a
length."""
