"""Functions, kinds, monoids and patterns that people declare themselves: their digests, their names in programs and
files, and the modules that declare them."""
