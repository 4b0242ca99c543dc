"""Memory and time of training steps: counted, simulated, measured, planned."""
