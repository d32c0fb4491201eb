"""The machine: its processor, threads and noise; measured times of kernels on it, and times on other machines by data
sheets."""
