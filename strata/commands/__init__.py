"""The commands of `strata`, one module per topic."""
