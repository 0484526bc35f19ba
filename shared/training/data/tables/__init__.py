"""Tables of texts: from files as Excel, R, pandas and databases write them to arrays of numbers."""
