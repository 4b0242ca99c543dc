"""How batches get to the device that computes with them."""
