"""Ranks as programs: what each computes between two crossings is searched and runs on kernels."""
