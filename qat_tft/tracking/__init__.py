"""Trackers: the figures of a run in TensorBoard, MLflow, W&B and trackio, beside metrics.jsonl."""
