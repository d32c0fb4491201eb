"""Sizes that texts of products over monoids, and the words that these are written in, agree on."""
UNIT_SIDE = 64                                              # queries of an item, and keys of a tile
SCORE_BYTES = 4 * UNIT_SIDE                                 # of a line: a number for each query of an item
CHUNK_COLUMNS = 192                                         # columns of an item at most
