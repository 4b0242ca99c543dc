"""ONNX files: written from a run folder, proven equal to the model that was validated, and run without torch."""
