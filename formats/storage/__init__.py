"""The storage formats: a file each, all of one form; formats/catalogue.py lists them by name."""
