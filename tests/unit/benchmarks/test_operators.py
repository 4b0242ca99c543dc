"""The count of operators that the benchmark reports is by phase and form, in the chunks of the device asked for."""

from __future__ import annotations


def test_operators_are_counted_in_the_chunks_of_a_gpu(benchmark_named):
    operators, workloads = benchmark_named("sides.operators"), benchmark_named("sides.workloads")
    small = workloads.Workload(static=0, observed=39, known=1, hidden=8, heads=2, history=4, horizon=2, batch=2)
    gpu, cpu = (operators.operators_on_a_gpu(small, device=device) for device in ("cuda", "cpu"))
    assert list(gpu) == ["fp32", "qat"]
    for kind in gpu:
        assert set(gpu[kind]) == {"exact", "tabulated"}
        assert 100 < gpu[kind]["exact"] < cpu[kind]["exact"], "40 columns are 2 chunks instead of 10"
        assert 100 < gpu[kind]["tabulated"] < cpu[kind]["tabulated"], "and 1 instead of 2"
