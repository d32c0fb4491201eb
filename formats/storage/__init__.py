"""The storage formats: a file each, all of one form; formats/storage/catalogue.py lists them by name."""
