"""Parts of a model: which units, in which widths, and which weights are pruned."""
