"""Which column is what: proposed from the data, declared in field metadata, or given piece by piece."""
