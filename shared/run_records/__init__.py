"""What is recorded of a run: the records that the API, results folders and reports share."""
