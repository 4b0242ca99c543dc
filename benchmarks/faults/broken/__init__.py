"""Broken and hostile input: what is damaged, how a command is tried on it, and what counts as mishandled."""
