"""Evaluation: q-risk against a seasonal naive forecast, pictures and the report of a run."""
