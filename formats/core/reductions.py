"""How the rows of a sequence become one."""
HOW = ("first", "last", "sum", "mean", "max", "by_root", "by_place")         # divided by the root of their number; the
                                                                             # k-th k times
PICKS = HOW[:2]                                              # which read one row
