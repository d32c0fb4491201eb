"""How kernels are compiled, kept, launched and recorded, and the pool of threads that runs them."""
