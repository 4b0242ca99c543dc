"""What a phase makes of its epochs: groups of batches, and whole runs that must come out alike."""

import torch

from qat_tft.config.run import RunConfig
from qat_tft.runs import files
from qat_tft.training.job import FinishedRun, train


def changed(config: RunConfig, **sections: dict[str, object]) -> RunConfig:
    settings = {name: getattr(config, name).model_copy(update=values) for name, values in sections.items()}
    return config.model_copy(update=settings)


def weights(run: FinishedRun, kind: str = "fp32") -> dict[str, torch.Tensor]:
    return files.read_tensors(run.folder.path / f"{kind}.safetensors", kind=kind)[0]


def differing(one: FinishedRun, other: FinishedRun) -> list[str]:
    pairs = [(kind, weights(one, kind), weights(other, kind)) for kind in ("fp32", "qat")]
    return [f"{kind} {name}" for kind, a, b in pairs for name in a | b if not torch.equal(a[name], b[name])]


def test_a_group_that_the_epoch_leaves_incomplete_is_a_step_like_any_other(config, schema, tmp_path):
    alone = changed(config, training={"batches_per_epoch": 1, "epochs": 2})
    grouped = changed(config, training={"batches_per_epoch": 1, "epochs": 2, "accumulation": 4, "gradient_clip": 1e9})
    expected = train(changed(alone, training={"gradient_clip": 1e9}), schema, runs_dir=tmp_path, name="alone")
    assert differing(train(grouped, schema, runs_dir=tmp_path, name="grouped"), expected) == []
