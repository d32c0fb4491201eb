"""Products with stored weights, dense, narrow and sparse. Which file serves which format is a table of docs/tables.md,
made from what formats call; gemm.py, tiles.py, narrow_vectors.py and narrow_matrix.py multiply for several of them,
rounding.py, hadamard.py and transposing.py bring rows into the order that they are read in."""
