"""The report of a run as a page: its content first, then pictures, then HTML."""
