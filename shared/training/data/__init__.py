"""Data sets: where they come from, how they are kept, and how images are changed."""
