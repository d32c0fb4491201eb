"""Descendants of LLaMA that differ in the form of a layer: a file each."""
