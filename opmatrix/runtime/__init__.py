"""The runtime of programs: values, kernels, the table of kernels, the placement of buffers."""
