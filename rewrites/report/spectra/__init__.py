"""Spectra of what is never formed: products of a head's weights, Jacobians of layers, errors of sites."""
