"""Python on single numbers read as graphs, and what rows become by them as kernels that are written when asked for."""
