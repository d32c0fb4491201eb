"""Models whose layers merge the rows before each row in order, in place of attention: a file each."""
