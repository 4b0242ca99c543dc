"""Is every number of a file that of its run?"""
