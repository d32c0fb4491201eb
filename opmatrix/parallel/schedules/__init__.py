"""Pipelines in time: the tasks of each stage in their order, when they run, what they hold, how long stages wait."""
