"""Bodies of the REST API that do not belong to a run."""
