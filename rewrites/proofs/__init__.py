"""Statements proved by the laws, or refuted by numbers."""
