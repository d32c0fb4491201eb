"""The command line: commands, their options, what they print and write, and how they exit."""
