"""Data sets, partitions, models, sub-networks and the training loop."""
