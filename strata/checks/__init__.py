"""The contract of plug-ins as plain functions: `strata check` runs them on a user's package, our tests on ours."""
