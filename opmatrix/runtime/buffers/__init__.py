"""Memory of the values of a program: an order of steps with the least peak, slots in an arena, plans of memory."""
