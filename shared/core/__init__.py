"""Values and pure functions that everything else may use."""
