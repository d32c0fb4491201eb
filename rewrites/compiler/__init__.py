"""From a model to its cheapest equal program: parts, graphs, prices, extraction, emission."""
