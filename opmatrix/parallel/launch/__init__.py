"""Partitions whose ranks are processes: the generators of virtual ranks over torch.distributed, watched, counted at the
wire; what a plan and a run are as files of other tools."""
