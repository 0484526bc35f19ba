"""What two tiers of StrataFL must agree on. Imports no tier."""
