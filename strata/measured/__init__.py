"""Measurements of devices: mixtures fitted to them, and files of other projects converted to a file of devices."""
