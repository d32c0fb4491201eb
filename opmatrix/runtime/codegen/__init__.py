"""Terms that go through rows one by one, as one value of each row: what kernels are written of
(formats/kernels/generated)."""
