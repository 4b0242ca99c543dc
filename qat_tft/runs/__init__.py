"""Runs: what a run folder holds, its data, its models, its results."""
