"""Settings of training stacks: read into layouts, and written from them."""
