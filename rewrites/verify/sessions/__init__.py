"""Sessions of programs, verified: attention over pages, forks, rewinds and windows, against the whole text."""
