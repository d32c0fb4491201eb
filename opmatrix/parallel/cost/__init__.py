"""Which strategy spreads a model over many devices best: time and memory of one, as formulas of its sizes."""
