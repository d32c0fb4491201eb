"""The results of a run: points of the front, the choice among them, and the report as text, JSON and directories."""
