"""From a saturated graph to an extraction problem: calls of kernels, stored forms of weights, and their prices."""
