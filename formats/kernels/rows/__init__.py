"""Passes over rows, rotations among them, and reductions of the rows of sequences."""
