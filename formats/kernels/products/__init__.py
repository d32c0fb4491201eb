"""Products with stored weights, dense, narrow and sparse."""
