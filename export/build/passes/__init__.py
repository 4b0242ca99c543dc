"""What turns the exporter's graph into the one that is written, pass by pass."""
