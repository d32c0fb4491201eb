"""Passes over rows, rotations among them, and rows of sequences made one."""
