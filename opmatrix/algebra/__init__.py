"""The algebra: terms, the kinds of their nodes, monoids, properties, and the float64 meaning of a term."""
