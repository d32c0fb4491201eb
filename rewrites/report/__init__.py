"""What a run found: points of the front, the choice among them, results as text, JSON and directories."""
