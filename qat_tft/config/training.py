"""Training: the section of the configuration that drives the loop."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from qat_tft.checkpointing.budget import parse_memory
from qat_tft.checkpointing.segments import parse_segments, segments_of
from qat_tft.config.fields import Count, Fraction, MemoryAmount, Metavar, Names, PositiveInt, Section

ModeName = Literal["off", "aggressive", "full"]
TRACKERS = ("tensorboard", "mlflow", "wandb", "trackio")


class TrainingConfig(Section):
    """The training loop."""

    title: ClassVar = "Training"
    only_in_files: ClassVar = frozenset(
        {"warmup", "weight_decay", "gradient_clip", "averaging", "validation_windows", "test_windows"}
    )

    epochs: Count = Field(default=10, description="floating-point epochs")
    batch_size: PositiveInt = Field(default=64, description="windows per batch, over all ranks")
    batches_per_epoch: PositiveInt | None = Field(
        default=None, description="batches per epoch; none: every window once"
    )
    accumulation: PositiveInt = Field(
        default=1, description="gradient accumulation: batches per optimizer step, fewer in the last one of an epoch"
    )
    learning_rate: float = Field(
        default=2e-3, gt=0.0, description="peak learning rate of the warm-up and cosine schedule"
    )
    warmup: Fraction = Field(default=0.05, description="share of a phase's steps with a rising learning rate")
    weight_decay: float = Field(default=1e-4, ge=0.0, description="decoupled weight decay of AdamW")
    gradient_clip: float = Field(default=1.0, gt=0.0, description="maximum gradient norm")
    averaging: Fraction = Field(
        default=0.0,
        description="weight of the past in a moving average of the weights, validated beside them; 0: none is kept",
    )
    validation_windows: PositiveInt = Field(
        default=4096, description="maximum number of validation windows, evenly spaced"
    )
    test_windows: PositiveInt = Field(default=16384, description="maximum number of test windows, evenly spaced")
    patience: PositiveInt = Field(
        default=4,
        description="epochs without a lower validation loss until the learning rate falls to its floor, "
        "within a fifth of the epochs, and training stops",
    )
    save_every: float = Field(
        default=60.0, ge=0.0, description="seconds of training after which its resumable state is saved again"
    )
    seed: int = Field(default=0, ge=0, lt=2**31, description="seed of weights, dropout and shuffling")
    precision: Literal["fp32", "bf16", "fp16"] = Field(default="fp32", description="number format of the forward pass")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="device to train on")
    use_gradient_checkpointing: bool = Field(default=False, description="recompute activations in the backward pass")
    checkpoint_mode: Literal[ModeName, "auto"] | None = Field(
        default=None,
        description="which segments to recompute; none: full with use_gradient_checkpointing, off without; "
        "auto: the fastest mode whose step fits memory_budget",
    )
    memory_budget: MemoryAmount | None = Field(
        default=None, description="with checkpoint_mode auto: memory limit of a training step, such as 3.5GiB"
    )

    checkpoint_segments: Names | None = Field(
        default=None, description="segments to recompute, instead of a mode's; separated by commas"
    )

    track: Annotated[Names, Metavar("TRACKER,...")] = Field(
        default=(),
        description=f"trackers that get the configuration, metrics and results too, of {', '.join(TRACKERS)}; "
        "on this machine unless the environment names a server",
    )

    @field_validator("track")
    @classmethod
    def _trackers_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in names if name not in TRACKERS]
        if unknown:
            raise ValueError(f"training.track: no tracker is called {unknown[0]!r}; allowed: {', '.join(TRACKERS)}")
        return tuple(dict.fromkeys(names))

    @model_validator(mode="after")
    def _checkpointing_fits(self) -> Self:
        if self.checkpoint_segments is not None:
            parse_segments(",".join(self.checkpoint_segments))
            if self.checkpoint_mode is not None:
                raise ValueError(
                    "training.checkpoint_mode and training.checkpoint_segments both choose segments: drop one of them"
                )
        if self.use_gradient_checkpointing and self.checkpoint_mode == "off":
            raise ValueError(
                "training.use_gradient_checkpointing contradicts training.checkpoint_mode off: drop one of them"
            )
        if self.memory_budget is not None:
            parse_memory(self.memory_budget, where="training.memory_budget")
        if (self.memory_budget is not None) != (self.checkpoint_mode == "auto"):
            raise ValueError(
                "training.checkpoint_mode auto and training.memory_budget go together: set both, or neither"
            )
        return self

    @property
    def segments_mode(self) -> ModeName:
        """The checkpointing mode that holds, from both settings; `auto` must have been decided before."""
        assert self.checkpoint_mode != "auto"
        if self.checkpoint_mode is not None:
            return self.checkpoint_mode
        return "full" if self.use_gradient_checkpointing else "off"

    @property
    def recomputed_segments(self) -> frozenset[str]:
        """The names of the segments to recompute, from all settings together."""
        if self.checkpoint_segments is not None:
            return parse_segments(",".join(self.checkpoint_segments))
        return segments_of(self.segments_mode)
