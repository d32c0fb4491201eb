"""How programs run: what a value is, what a kernel is, the table of kernels, where buffers lie."""
