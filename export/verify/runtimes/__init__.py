"""The same file in runtimes other than onnxruntime."""
