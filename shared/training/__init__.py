"""Data, partitions, models and the one training loop."""
