"""The quality of a program: differences from the model, goals, rank correlation, perplexity, checks of a saved
program."""
