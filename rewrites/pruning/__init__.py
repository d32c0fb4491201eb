"""Structured pruning: hidden units and heads go where it costs least, and what is left is fitted."""
