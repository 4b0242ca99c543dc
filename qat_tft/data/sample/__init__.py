"""Data to try the product on: embedded temperatures and simulated futures bars."""
