"""Ranks as programs: the computation of each rank between two collectives is searched, and runs on kernels."""
