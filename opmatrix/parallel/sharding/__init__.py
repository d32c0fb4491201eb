"""A term on a mesh: how its values lie, what its operations ask for, and what crosses between them."""
