"""The configuration of a run, one file per section; what an option is called and takes follows from it."""
