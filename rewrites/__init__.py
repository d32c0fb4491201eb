"""The top floor: laws, the e-graph, extraction, verification, `optimize`."""
