"""Products over any monoid, as kernels that are written on demand: scores tile by tile, carriers in registers."""
