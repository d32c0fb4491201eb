"""Pipelines in time: the ordered tasks of each stage, when they run, the memory they hold, the waits of stages."""
