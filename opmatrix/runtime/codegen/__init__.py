"""Terms that go through rows one by one, as one value of each row: the input of the kernel generator
(formats/kernels/generated)."""
