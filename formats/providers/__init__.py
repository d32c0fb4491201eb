"""Other libraries that multiply by what a format stores: the same declarations, another provider. None is imported
until asked for, and none is needed: numba's kernels are complete."""


class Unavailable(RuntimeError):
    """A provider that is not installed, a device that is not there, or a format that it has no product for: says
    which."""
