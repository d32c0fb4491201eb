"""The machine that runs commands: its calibration, its facts and findings, and its environment."""
