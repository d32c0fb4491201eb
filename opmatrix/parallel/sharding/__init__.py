"""A term on a mesh: the placement of its values, the demands of its operations, and the communication between them."""
