"""Python on single numbers, read as graphs, and row-wise kernels that are written from them on demand."""
