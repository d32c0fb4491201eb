"""Where the values of a program lie: an order of steps with the least peak, slots in an arena, plans of memory."""
