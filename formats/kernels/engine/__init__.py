"""The engine of kernels: compilation, the cache of object code, launches, recordings, and the pool of threads that runs
them."""
