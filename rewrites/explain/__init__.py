"""Explanations of a program: its derivation, schedules by hand, and rewrites explored."""
