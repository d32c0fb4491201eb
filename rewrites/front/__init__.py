"""Approximations: proposed, measured, chosen within budgets; the front of programs and what is said of it."""
