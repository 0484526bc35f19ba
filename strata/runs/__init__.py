"""Following and downloading runs."""
