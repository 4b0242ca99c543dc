"""From a run folder to ONNX files."""
