"""The device: its peaks, what running out of memory looks like, and what this CPU can do."""

import math
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from qat_tft.device import (
    ONEDNN_FAILURES,
    allocated_peak,
    cpu_runs_bf16_lstm,
    forget_peak,
    free_bytes,
    half_precision,
    in_one_piece,
    is_out_of_memory,
    lstm_leaves_autocast,
    lstm_weights_for,
    make_accelerator,
    peak_process_mib,
    random_state,
    restore_random_state,
    seconds_of,
    visible_cores,
)
from qat_tft.errors import ConfigError

CPU = torch.device("cpu")


def test_this_process_has_a_peak():
    assert 10 < peak_process_mib() < 1e6


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets a process's peak")
def test_a_forgotten_peak_is_counted_from_then_on():
    block = bytearray(400 * 2**20)
    with_block = peak_process_mib()
    del block
    forget_peak()
    assert peak_process_mib() < with_block - 300


def test_the_cpu_has_free_memory_and_no_allocator_to_read():
    assert 2**20 < free_bytes(CPU) < 2**50
    assert allocated_peak(lambda: pytest.fail("it must not run for nothing"), CPU) is None


def test_a_function_is_timed_by_running_it_once():
    calls = []
    assert seconds_of(lambda: calls.append(1), CPU) > 0
    assert calls == [1]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError(f"{ONEDNN_FAILURES[0]}\n"), True),
        (RuntimeError("could not create a primitive descriptor for the LSTM forward propagation primitive"), False),
        (RuntimeError("shapes do not match"), False),
        (ValueError("DefaultCPUAllocator"), False),
    ],
    ids=["python", "cuda", "onednn", "a kernel that does not exist", "shapes", "another class"],
)
def test_only_a_shortage_is_taken_for_one(failure: Exception, expected: bool):
    assert is_out_of_memory(failure) is expected


def test_tensors_in_one_piece_lie_one_after_the_other_and_pass_their_gradients():
    given = [torch.randn(shape, requires_grad=True) for shape in ((8, 3), (8, 2), (8,), (8,))]
    pieces = in_one_piece(given)
    assert all(map(torch.equal, pieces, given))
    places = [piece.data_ptr() for piece in pieces]
    assert places == [places[0] + 4 * count for count in (0, 24, 40, 48)]
    assert pieces[0].untyped_storage().nbytes() == 4 * 56
    torch.cat([piece.flatten() for piece in pieces]).backward(torch.arange(56.0))
    assert torch.equal(torch.cat([tensor.grad.flatten() for tensor in given]), torch.arange(56.0))


def test_an_lstm_of_weights_in_one_piece_is_the_same_to_the_bit():
    torch.manual_seed(0)
    layer, x = torch.nn.LSTM(3, 2, batch_first=True), torch.randn(4, 5, 3)
    states = [torch.randn(1, 4, 2) for _ in range(2)]
    weights = [weight.detach().requires_grad_() for weight in layer.all_weights[0]]

    def run(weights: list[torch.Tensor]) -> torch.Tensor:
        return torch.lstm(x, states, weights, True, 1, 0.0, True, False, True)[0]

    apart, together = run(weights), run(in_one_piece(weights))
    assert torch.equal(apart, together)
    assert all(map(torch.equal, *(torch.autograd.grad(out.square().sum(), weights) for out in (apart, together))))
    assert all(one is other for one, other in zip(lstm_weights_for(CPU, weights), weights, strict=True))


def test_random_numbers_go_on_from_a_kept_state():
    state = random_state()
    first = torch.randn(3)
    restore_random_state(state)
    assert torch.equal(torch.randn(3), first)


def test_asking_for_the_bf16_lstm_leaves_random_numbers_alone_and_agrees_with_running_one():
    torch.manual_seed(3)
    expected = torch.randn(2)
    torch.manual_seed(3)
    cpu_runs_bf16_lstm.cache_clear()
    answer = cpu_runs_bf16_lstm()
    assert torch.equal(torch.randn(2), expected)
    with torch.autocast("cpu", torch.bfloat16):
        if answer:
            torch.nn.LSTM(2, 3)(torch.zeros(4, 1, 2))
        else:
            with pytest.raises(RuntimeError, match="primitive"):
                torch.nn.LSTM(2, 3)(torch.zeros(4, 1, 2))


def test_asking_for_the_bf16_lstm_first_inside_a_simulation_or_a_checkpoint_gives_the_same_answer():
    cpu_runs_bf16_lstm.cache_clear()
    answer = cpu_runs_bf16_lstm()
    cpu_runs_bf16_lstm.cache_clear()
    with FakeTensorMode(), torch.device("meta"):
        assert cpu_runs_bf16_lstm() is answer
    cpu_runs_bf16_lstm.cache_clear()
    weight = torch.ones(2, requires_grad=True)
    checkpoint(lambda x: (x * cpu_runs_bf16_lstm()).exp().sum(), weight, use_reentrant=False).backward()
    assert torch.equal(weight.grad, torch.full((2,), math.e) if answer else torch.zeros(2))


@pytest.mark.parametrize(
    ("kind", "number_format", "cpu_has_it", "leaves"),
    [
        ("cpu", None, False, False),
        ("cpu", torch.bfloat16, True, False),
        ("cpu", torch.bfloat16, False, True),
        ("cuda", None, True, False),
        ("cuda", torch.bfloat16, True, True),
        ("cuda", torch.float16, True, False),
    ],
    ids=str,
)
def test_lstms_compute_in_single_precision_where_bf16_would_be_none(
    kind, number_format, cpu_has_it, leaves, monkeypatch
):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == kind and number_format is not None)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: number_format)
    monkeypatch.setattr("qat_tft.device.cpu_runs_bf16_lstm", lambda: cpu_has_it)
    assert lstm_leaves_autocast(torch.device(kind)) is leaves


def test_this_process_may_use_a_core():
    assert 1 <= visible_cores() <= 4096


def test_formats_of_sixteen_bits():
    assert half_precision("bf16", CPU) is half_precision("fp16", CPU) is torch.bfloat16
    assert half_precision("fp16", torch.device("cuda")) is torch.float16


def test_a_format_that_the_device_lacks_is_refused():
    with pytest.raises(ConfigError, match="fp16 needs a CUDA device"):
        make_accelerator("cpu", "fp16")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="no CUDA device is available"):
        make_accelerator("cuda", "fp32")
