"""The Pareto front of time, memory and error: proposals, columns, budgets, levels of error."""
