"""Terms as Python, LaTeX and HTML; drawings."""
