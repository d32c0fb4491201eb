"""Devices beside each other: the links between them, level by level, and what collectives over these take."""
