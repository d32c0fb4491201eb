"""Functions, kinds and monoids that people declare themselves: digests of their code, and their names."""
