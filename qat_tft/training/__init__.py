"""Training: the step, the loop, resumable state and the run folder."""
