"""Metrics: measures of a model's outputs, computed from states of whole numbers that add up exactly."""
