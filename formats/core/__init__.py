"""What a format is made of: arrays and their sizes, the declaration, its check, epilogues."""
