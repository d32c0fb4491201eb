"""Products with stored weights, dense, narrow and sparse. docs/tables.md has a table of the files that serve each
format, made from the calls of the formats; gemm.py, tiles.py, narrow_vectors.py and narrow_matrix.py multiply for
several formats; rounding.py, hadamard.py and transposing.py bring rows into the order in which they are read."""
