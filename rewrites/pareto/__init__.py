"""The Pareto front of time, memory and error: columns, budgets, levels of error, errors of substituted blocks."""
