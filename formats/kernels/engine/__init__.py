"""How kernels are compiled, kept, launched and recorded, and the vectors that they are written in."""
