"""A local topology of processes."""
