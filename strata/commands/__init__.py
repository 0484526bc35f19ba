"""The commands of `strata`, by room."""
