"""What quantization-aware training does beside training: a teacher, ranges set anew, codes that are counted."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
import torch

from qat_tft.checkpointing.recompute import runner_for
from qat_tft.config.run import RunConfig
from qat_tft.data.loading.loader import batches
from qat_tft.device import make_accelerator
from qat_tft.errors import RunFolderError
from qat_tft.model.loss import distance, loss_of, quantile_loss
from qat_tft.quantization.ranges import Phase
from qat_tft.runs.build import build_model, configured_qat_model
from qat_tft.runs.calibration import calibrate_on, calibrator_losses
from qat_tft.runs.optimizer import SCALES, make_optimizer
from qat_tft.training import quantized_phase
from qat_tft.training.progress import FLIPPED
from qat_tft.training.quantized_phase import CodeChanges, RangeSchedule, Teacher, drawn_windows
from qat_tft.training.steps.step import TrainingStep

CPU = torch.device("cpu")


def changed(config: RunConfig, **sections: dict[str, object]) -> RunConfig:
    values = config.model_dump()
    for section, settings in sections.items():
        values[section] |= settings
    return RunConfig.checked(values, where="the test")


@pytest.fixture
def settled(config: RunConfig) -> RunConfig:
    return config.with_frame(linear_path="off", scale_input=False)


@pytest.fixture
def model(settled, data):
    torch.manual_seed(0)
    return build_model(settled.model, data.preprocessing, data.schema)


@pytest.fixture
def quantized(model, settled):
    settled = changed(settled, quantization={"weight_bits": "4"})
    return configured_qat_model(model, settled.model, settled.quantization)


def teacher_of(model, data, drawn, tmp_path, batch_size=7) -> Teacher:
    scaling = data.preprocessing.scaling()
    where = {"device": CPU, "scratch": tmp_path / "teacher.scratch"}
    return Teacher.of(model, scaling, data.training, drawn, batch_size=batch_size, **where)


def test_the_windows_that_epochs_draw_are_those_of_their_batches(settled, data):
    found = drawn_windows(data.training, settled.training, range(1, 3), 3)
    drawn = set()
    for epoch in (1, 2):
        plan = batches(data.training, 16, shuffle=True, seed=settled.training.seed, epoch=epoch).plan()
        for indices, *_ in islice(plan, 3):
            drawn |= set(indices.tolist())
    assert found.tolist() == sorted(drawn)
    assert len(found) < len(data.training)


@pytest.mark.parametrize("memory", [2**28, 16], ids=["in memory", "in a file"])
def test_the_teacher_says_what_the_model_forecasts_in_evaluation_mode(
    model, settled, data, tmp_path, monkeypatch, memory
):
    monkeypatch.setattr("qat_tft.training.quantized_phase._IN_MEMORY", memory)
    model.train()
    teacher = teacher_of(model, data, torch.tensor([3, 5, 8, 13, 21]), tmp_path)
    assert model.training
    assert (tmp_path / "teacher.scratch").exists() == (memory == 16)
    indices = torch.tensor([13, 3, 21])
    taught = teacher(data.training[indices], indices)
    inputs = data.preprocessing.scaling().scale_inputs(taught.static, taught.historical, taught.future, taught.series)
    with torch.no_grad():
        expected = model.eval()(*inputs).quantiles
    assert torch.allclose(taught.teacher, expected, atol=1e-6)
    part = taught.windows(slice(1, 3))
    assert torch.equal(part.teacher, taught.teacher[1:3])


def test_the_distance_is_half_of_the_difference_and_missing_targets_do_not_count():
    prediction, teacher = torch.zeros(2, 2, 3), torch.ones(2, 2, 3)
    teacher[0, 0] = 100.0
    target = torch.zeros(2, 2)
    target[0, 0] = torch.nan
    assert distance(prediction, teacher, target).item() == pytest.approx(1.5)
    assert distance(prediction, prediction, target).item() == 0.0
    middle = quantile_loss(prediction[..., :1], teacher[:, :, 0], [0.5])
    assert distance(prediction[..., :1], teacher[..., :1], torch.zeros(2, 2)).item() == pytest.approx(middle.item())


def step_of(model, config, data, distill: float) -> TrainingStep:
    return TrainingStep(
        accelerator=make_accelerator("cpu", "fp32"),
        model=model,
        scaling=data.preprocessing.scaling(),
        schema=data.schema,
        optimizer=make_optimizer(model),
        run_segment=runner_for("off"),
        loss=loss_of(config.model.quantiles),
        gradient_clip=1e6,
        distill=distill,
    )


@pytest.mark.parametrize("micro_batch", [None, 5])
def test_the_loss_is_the_weighted_sum_of_loss_and_distance(settled, data, tmp_path, micro_batch):
    settled = changed(settled, model={"dropout": 0.0})
    torch.manual_seed(0)
    model = build_model(settled.model, data.preprocessing, data.schema)
    indices = torch.arange(16)
    batch = data.training[indices]
    taught = teacher_of(model, data, indices, tmp_path)(batch, indices)
    taught = taught._replace(teacher=taught.teacher + 1.0)
    outcomes = {}
    for distill in (0.0, 0.25, 1.0):
        torch.manual_seed(1)
        other = build_model(settled.model, data.preprocessing, data.schema)
        other.load_state_dict(model.state_dict())
        step = replace(step_of(other, settled, data, distill), micro_batch=micro_batch)
        outcomes[distill] = step([taught], place="the test").settled().loss
    apart = len(settled.model.quantiles) / 2
    assert outcomes[1.0] == pytest.approx(apart, rel=1e-5)
    assert outcomes[0.25] == pytest.approx(0.75 * outcomes[0.0] + 0.25 * apart, rel=1e-5)


def test_ranges_are_set_anew_once_when_they_freeze_and_in_evaluation_mode(quantized, settled, data):
    scaling = data.preprocessing.scaling()
    calls = []

    def recalibrate() -> None:
        calls.append(quantized.phase)
        calibrate_on(quantized, settled, data.training, scaling, CPU)

    schedule = RangeSchedule(quantized, 0.5, recalibrate)
    calibrate_on(quantized, settled, data.training, scaling, CPU)
    exact = {name: value.clone() for name, value in quantized.state_dict().items() if name.endswith("input.maximum")}
    quantized.train()
    phases = []
    for step in range(8):
        schedule(step, 8)
        phases.append(quantized.phase)
        batch = data.training[torch.arange(16)]
        quantized(*scaling.scale_inputs(batch.static, batch.historical, batch.future, batch.series))
        if step == 3:
            moved = quantized.state_dict()
            assert any(not torch.equal(moved[name], value) for name, value in exact.items()), "dropout widens ranges"
    assert calls == [Phase.QAT]
    assert phases == [Phase.QAT] * 4 + [Phase.FROZEN] * 4
    assert quantized.training
    after = quantized.state_dict()
    assert all(torch.equal(after[name], value) for name, value in exact.items()), "no weight has changed meanwhile"


@pytest.mark.parametrize(("frozen", "calls"), [(0.0, 0), (0.25, 1)])
def test_no_step_with_frozen_ranges_sets_none_anew(quantized, frozen, calls):
    found = []
    schedule = RangeSchedule(quantized, frozen, lambda: found.append(1))
    for step in (8, *range(8)):  # the end comes first: the start of a phase is scored with frozen ranges
        schedule(step, 8)
    assert len(found) == calls


def test_setting_ranges_twice_gives_the_same_as_once(quantized, settled, data):
    scaling = data.preprocessing.scaling()
    for _ in range(2):
        calibrate_on(quantized, settled, data.training, scaling, CPU)
        found = {name: value.clone() for name, value in quantized.state_dict().items() if ".input." in name}
    fresh = changed(settled, quantization={"calibrator": "min-max"})
    calibrate_on(quantized, fresh, data.training, scaling, CPU)
    calibrate_on(quantized, settled, data.training, scaling, CPU)
    again = quantized.state_dict()
    assert all(torch.equal(again[name], value) for name, value in found.items())


def test_every_calibrator_is_tried_and_its_loss_is_that_of_its_ranges(quantized, settled, data):
    scaling = data.preprocessing.scaling()
    losses = calibrator_losses(quantized, settled, data.training, data.validation, scaling, CPU)
    assert {str(name) for name in losses} == {"moving-average", "min-max", "percentile", "mse"}
    assert len(set(losses.values())) > 1
    floats = configured_qat_model(a_model(settled, data), settled.model, as_floats(settled).quantization)
    assert calibrator_losses(floats, settled, data.training, data.validation, scaling, CPU) == {}


def as_floats(settled: RunConfig) -> RunConfig:
    return changed(settled, quantization={"products": "float"})


def a_model(settled, data):
    return build_model(settled.model, data.preprocessing, data.schema)


def test_the_share_of_changed_codes_is_counted_from_epoch_to_epoch(quantized):
    changes = CodeChanges(quantized)
    assert changes.after_epoch() == {FLIPPED: 0.0}
    kept = {name: tensor.clone() for name, tensor in changes.memory().items()}
    weight = quantized.model.head.weight
    with torch.no_grad():
        weight[0] *= -1
    codes = quantized.codes()
    expected = int((codes["head.weight"][0] != 0).sum()) / sum(one.numel() for one in codes.values())
    resumed = CodeChanges(quantized)
    resumed.remember(kept)
    assert changes.after_epoch() == resumed.after_epoch() == {FLIPPED: pytest.approx(expected)}
    assert changes.after_epoch() == {FLIPPED: 0.0}


def test_scales_have_a_group_of_their_own_without_decay(quantized):
    optimizer = make_optimizer(quantized, learning_rate=1e-3, weight_decay=0.1)
    names = {parameter: name for name, parameter in quantized.named_parameters()}
    scales = [group for group in optimizer.param_groups if any("log_scale" in names[one] for one in group["params"])]
    (group,) = scales
    assert all("log_scale" in names[one] for one in group["params"])
    assert (group["weight_decay"], group["lr"]) == (0.0, pytest.approx(SCALES * 1e-3))
    assert all(parameter.requires_grad for parameter in quantized.parameters())


def test_fixed_scales_are_not_trained(model, settled):
    settled = changed(settled, quantization={"weight_bits": "4", "weight_scales": "fixed"})
    quantized = configured_qat_model(model, settled.model, settled.quantization)
    optimizer = make_optimizer(quantized)
    trained = {id(one) for group in optimizer.param_groups for one in group["params"]}
    scales = [parameter for name, parameter in quantized.named_parameters() if "log_scale" in name]
    assert scales
    assert trained.isdisjoint(map(id, scales))


def test_a_disk_without_room_for_the_teacher_is_an_error_and_no_crash(tmp_path, full_disk, monkeypatch):
    """Writing to a mapped file that turns out not to fit kills the process."""
    monkeypatch.setattr(quantized_phase, "_IN_MEMORY", 1)
    with full_disk(100), pytest.raises(RunFolderError, match=r"teacher\.scratch: cannot write: File too large"):
        quantized_phase._space((50, 3), tmp_path / "teacher.scratch")
    space = quantized_phase._space((50, 3), tmp_path / "teacher.scratch")
    assert space.fill_(1.5).shape == (50, 3)
