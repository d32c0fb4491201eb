"""Quantisation methods of checkpoints, a file each: the numbers that their tensors stand for."""
