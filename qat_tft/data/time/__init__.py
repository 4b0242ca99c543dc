"""What the time column means: its kind, its zone, its calendar, its step and its season."""
