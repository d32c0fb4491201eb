"""Files that others may have written, the user's cache, and processes that import neither."""
