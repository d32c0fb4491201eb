"""The derivation of a program from another: derivations, schedules by hand, the gain of each law."""
