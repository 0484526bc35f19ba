"""The pages of the dashboard: each registers itself with what it is made with."""
