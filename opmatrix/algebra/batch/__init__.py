"""The batch: its rows, inputs and relations, its sizes, and the trace of a term over it."""
