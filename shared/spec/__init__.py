"""The description of an experiment, as a value."""
