"""Sub-networks of a model: by units, by width, and by pruning."""
