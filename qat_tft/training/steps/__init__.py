"""One training step: made, taken back, and retried with less memory."""
