"""Strategies of many devices: which there are of a model, how they are searched, and why one is chosen."""
