"""Quantization-aware training: ranges, fake quantization, and the integer form of every quantized layer."""
