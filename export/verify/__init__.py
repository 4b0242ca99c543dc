"""Is a file the model that was validated?"""
