"""The declaration of a kernel: its call, what its operands are, its meaning, its bound and its price."""
