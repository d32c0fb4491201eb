"""Sizes shared by the texts of products over monoids and the vocabulary that they are written in."""

UNIT_SIDE = 64  # queries of an item, and keys of a tile
SCORE_BYTES = 4 * UNIT_SIDE  # bytes of a line: a number for each query of an item
CHUNK_COLUMNS = 192  # columns of an item at most
