"""Forecasts from ONNX files."""
