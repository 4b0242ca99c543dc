"""Activation checkpointing by named segments, equal to the bit to training without it."""
