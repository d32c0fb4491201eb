"""Kernels that are written from terms: rows one by one, and products over any monoid."""
