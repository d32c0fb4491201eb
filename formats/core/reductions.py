"""Reductions of the rows of a sequence to one row."""

# by_root: the sum, divided by the root of the number of rows; by_place: the mean with weight k for the k-th row
HOW = ("first", "last", "sum", "mean", "max", "by_root", "by_place")
PICKS = HOW[:2]  # reductions that read one row
