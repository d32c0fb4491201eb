"""Rewrites explored: classes, members with prices, what fired and why; what a law, a machine or a length changes."""
