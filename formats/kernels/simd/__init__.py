"""What kernels are written in: vectors of 16 float32, words of narrow numbers, tiles of matrix registers, and maths."""
