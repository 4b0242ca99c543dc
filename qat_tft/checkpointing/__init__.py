"""Activation checkpointing by named segments, bitwise identical to training without it."""
