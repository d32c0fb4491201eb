"""Partitions whose ranks are processes: the generators of virtual ranks over torch.distributed, watched, counted at the
wire; plans and runs as files of other tools."""
