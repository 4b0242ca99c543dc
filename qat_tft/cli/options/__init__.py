"""Options that several commands share, and what becomes of them."""
