"""The Temporal Fusion Transformer's architecture."""
