"""A visit: one client receives a model, trains it, evaluates it and reports."""
