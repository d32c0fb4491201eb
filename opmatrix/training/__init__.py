"""Gradients as terms, what forward keeps for them, and what a step of training costs a partition."""
