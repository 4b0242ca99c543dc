"""The libraries that benchmarks/peers.py compares, each behind the same requests in a process of its own."""
