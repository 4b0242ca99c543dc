"""What ranks settle before they train: that they were launched, that they do the same, and whether a run goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qat_tft import ranks
from qat_tft.config.run import RunConfig
from qat_tft.errors import ConfigError, UserError
from qat_tft.launch import Launch, launched, launcher
from qat_tft.runs import layout
from qat_tft.training import agreement, job
from qat_tft.training.agreement import refuse_idle_ranks, require_same_options

TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_a_process_that_nobody_launched_is_the_only_one():
    assert launched({}) == launched({"RANK": "0", "WORLD_SIZE": "1"}) == Launch()
    assert launched({}).is_first


def test_a_launcher_tells_each_process_its_place():
    assert launched({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "2"}) == Launch(rank=1, world=2, restarts=2)
    assert not launched(TORCHRUN).is_first


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (
            {"RANK": "0", "WORLD_SIZE": "4"},
            "tells of 4 processes, but LOCAL_RANK, MASTER_ADDR, MASTER_PORT are not set",
        ),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "tells of 2 processes, but RANK, WORLD_SIZE, LOCAL_RANK"),
        ({**TORCHRUN, "RANK": "2"}, "RANK is 2"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE: 'two' is not a number"),
    ],
)
def test_a_schedulers_variables_without_a_launcher_are_refused(environment, said):
    with pytest.raises(ConfigError, match=said):
        launched(environment)


def test_restarts_of_one_launcher_have_its_name_and_others_do_not():
    named = {"TORCHELASTIC_RUN_ID": "nightly"}
    assert launcher(named) == launcher({**named, "TORCHELASTIC_RESTART_COUNT": "1"}) != launcher({})
    assert launcher({}) == launcher({"TORCHELASTIC_RUN_ID": "none"})


def test_more_ranks_than_windows_in_a_batch_are_refused(monkeypatch):
    refuse_idle_ranks(1)
    monkeypatch.setattr(ranks, "world", lambda: 8)
    refuse_idle_ranks(8)
    with pytest.raises(ConfigError, match="a batch of 6 windows leaves 2 of 8 ranks without any"):
        refuse_idle_ranks(6)


def test_ranks_with_other_options_or_another_version_are_named(config: RunConfig, schema, monkeypatch):
    def told(own):
        return [own, {**own, "training.seed": 7, "the version of qat-tft": "0.0.1"}]

    monkeypatch.setattr(ranks, "told_by_all", told)
    with pytest.raises(ConfigError, match=r"rank 1 differs from rank 0 in the version of qat-tft, training\.seed"):
        require_same_options(config, schema)


def test_an_error_of_another_rank_ends_this_one_too(monkeypatch):
    monkeypatch.setattr(ranks, "world", lambda: 2)
    monkeypatch.setattr(ranks, "told_by_all", lambda own: [own, ["no such file", "/data", "", "Look for it"]])
    with pytest.raises(UserError, match=r"rank 1: /data: no such file\. Look for it"), ranks.together():
        pass


def test_a_restarted_launcher_goes_on_with_the_run_that_it_began(
    config: RunConfig, schema, tmp_path: Path, monkeypatch
):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "nightly")

    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(job.RunPhases, "finish", broken)
        with pytest.raises(KeyboardInterrupt):
            job.train(config, schema, runs_dir=tmp_path)
    (begun,) = tmp_path.iterdir()
    assert (begun / layout.LAUNCHER).read_text() == "job nightly\n"
    monkeypatch.setattr(agreement, "launched", lambda: replace(Launch(), restarts=1))
    assert job.train(config, schema, runs_dir=tmp_path).folder.name == begun.name.removesuffix(layout.UNFINISHED)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "weekly")
    assert agreement.begun_by_this_launcher(tmp_path) is None
