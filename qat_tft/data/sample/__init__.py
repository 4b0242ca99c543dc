"""Data to try the product on: embedded bike rentals and simulated futures bars."""
