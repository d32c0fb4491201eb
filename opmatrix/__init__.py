"""The middle floor: operators, monoids, their oracles, models, and programs that run."""
