"""Parquet files into a panel: found, read in blocks, sorted, prepared as declared, kept."""
