"""Files that others may have written, and the user's cache."""
