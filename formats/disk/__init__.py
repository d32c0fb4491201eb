"""Files that others may have written, the cache of the user, and Python processes that import neither."""
