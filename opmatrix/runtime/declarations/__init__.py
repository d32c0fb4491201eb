"""The declaration of a kernel: its call, its operands, its meaning, its bound and its price."""
