"""Smaller models: units and heads go where it costs least, what is left is fitted, each model is searched by itself."""
