"""The command line, and what it prints, writes and refuses."""
