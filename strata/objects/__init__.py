"""What `import strata` offers: clouds, runs, sweeps and specs as objects."""
