"""The machine: its processor, threads and noise; what kernels take on it, measured, and on others by data sheets."""
