"""Attention kernels: in one pass and in three, masked, over caches."""
