"""Training and forecasting in Python as the commands do it, for tables in memory too."""
