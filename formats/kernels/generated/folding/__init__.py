"""Products over any monoid as kernels that are written when asked for: scores tile by tile, carriers in registers."""
