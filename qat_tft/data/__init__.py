"""From Parquet files to batches: reading, vocabularies, scaling, windows."""
