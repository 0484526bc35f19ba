"""The users of a cloud beside its administrator: their tokens and their limits."""
