"""Data sets: sources, preparation and caching, and image augmentation."""
