"""The cost of a strategy: seconds and bytes of a step, as formulas of its sizes."""
