"""What checkpointing saves is measured on a copy: the model and the random state stay as they were."""

import torch

from qat_tft.checkpointing.segments import segments_of
from qat_tft.data.loading.loader import batches
from qat_tft.profiling import savings
from qat_tft.profiling.savings import Savings, measure_savings
from qat_tft.runs.build import build_model


def measured(data, config) -> tuple[Savings, torch.nn.Module]:
    torch.manual_seed(0)
    model = build_model(config.model, data.preprocessing, data.schema)
    batch = next(iter(batches(data.training, 16)))
    found = measure_savings(
        model,
        data.preprocessing.scaling(),
        batch,
        segments=segments_of("full"),
        quantiles=config.model.quantiles,
        device=torch.device("cpu"),
    )
    return found, model


def test_checkpointing_lowers_the_measured_peak_of_a_step(data, config):
    found, _ = measured(data, config)
    assert (found.mode, found.windows) == ("full", 16)
    assert 0 < found.with_bytes < found.without_bytes
    assert found.to_json()["saved"] == found.saved > 0
    assert min(found.without_seconds, found.with_seconds) > 0
    assert "less, and takes " in found.sentence()


def test_steps_are_timed_in_turns_and_not_for_long(monkeypatch):
    called = []
    times = {"off": iter([3.0, 1.0, 2.0]), "full": iter([4.0, 6.0, 5.0])}

    def taken(step, device):
        called.append(step)
        return next(times[step])

    monkeypatch.setattr(savings, "seconds_of", taken)
    assert savings._shortest(("off", "full"), torch.device("cpu")) == (1.0, 4.0)
    assert called == ["off", "full"] * 3
    times |= {"off": iter([9.0]), "full": iter([9.5])}
    monkeypatch.setattr(savings, "_MOST_SECONDS", 0.0)
    assert savings._shortest(("off", "full"), torch.device("cpu")) == (9.0, 9.5)


def test_measuring_leaves_no_trace(data, config):
    torch.manual_seed(0)
    untouched = build_model(config.model, data.preprocessing, data.schema)
    state = torch.get_rng_state()
    _, model = measured(data, config)
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, untouched.state_dict()[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_part_of_the_batch_is_measured_where_all_of_it_would_not_fit(data, config, monkeypatch):
    monkeypatch.setattr(savings, "free_bytes", lambda device: 1)
    found, _ = measured(data, config)
    assert found.windows == 2


def test_a_mode_that_costs_memory_says_so():
    assert "10% more" in Savings("aggressive", 1, 100, 110, 1.0, 1.5).sentence()
