"""A stored form is a structure times a number type. A structure is a format in float32: the numbers of W that it keeps,
and their places; a number type is the encoding of these numbers. A pair declares the parts of its own: the arrays,
their order, the kernel.

    class BlockInt8(Bytes, Format, structure=Block, tile=(64, 16)):
        "Nonzero tiles of bytes."
        ...
        def arranged(ptr, idx, val): ...                     # the structure's arrays, of whole numbers, as the kernel
                                                             reads them
        def restored(shape, ptr, idx, w): ...                # and back
        def kernel(x, ptr, idx, w, scale, out, epilogue): ..."""
