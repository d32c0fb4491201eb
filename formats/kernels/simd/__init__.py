"""The vocabulary of kernels: vectors of 16 float32, words of narrow numbers, tiles of matrix registers, and maths."""
