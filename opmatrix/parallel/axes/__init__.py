"""Axes of parallelism: an axis a file, and the ways in which its ranks split a model."""
