"""Approximations and where they are possible: sites that read a weight, trials, errors of methods and blocks, their
cache."""
