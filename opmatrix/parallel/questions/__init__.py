"""Questions to a plan: one layout, the fewest devices, which constraint binds."""
