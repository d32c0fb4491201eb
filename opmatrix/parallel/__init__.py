"""A model on many devices: how values are sharded, schedules of pipelines, training steps, cost, search, processes."""
