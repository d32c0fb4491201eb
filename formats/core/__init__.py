"""The parts of a format: arrays and their sizes, the declaration, its check, epilogues."""
