"""The e-graph: a model as parts, each a template, saturated under laws; matches are read from it."""
