"""How good a program is: differences from the model, goals, rank correlation, perplexity, checks of a saved program."""
