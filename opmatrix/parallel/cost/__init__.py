"""The cost of a strategy that spreads a model over many devices: time and memory, as formulas of its sizes."""
