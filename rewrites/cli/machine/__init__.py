"""The machine that runs commands: measured, looked at, and said in one page."""
