"""Relations between positions of a sequence: patterns of attention, their visibility, biases by distance."""
