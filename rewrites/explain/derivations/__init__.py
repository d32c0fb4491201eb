"""How a program follows from another: derivations, schedules by hand, what each law gained."""
