"""The code with which MkDocs turns the pages of docs/ into a site."""
