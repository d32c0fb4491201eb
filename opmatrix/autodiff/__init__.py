"""Backward: lines and terms of gradients, the values that are saved or recomputed, losses, Adam."""
