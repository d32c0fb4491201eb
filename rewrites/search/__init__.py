"""From a model to its cheapest equal program: the exact search, blocks that may be substituted, emission of steps."""
