"""Meshes that a model does not fit, in one line each that names what is wrong, its value, and what would do; and a
model of 61 layers of the widths of DeepSeek-V3, of which formulas are small."""


