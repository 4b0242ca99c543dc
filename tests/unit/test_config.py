"""The configuration is checked where it is made, and its messages name the key."""

import os
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qat_tft.checkpointing.segments import EVERY_SEGMENT, Mode, segments_of
from qat_tft.config.data import DataConfig
from qat_tft.config.quantization import QuantizationConfig
from qat_tft.config.run import DEMO, RunConfig, demo_settings, read_config_file
from qat_tft.config.training import ModeName
from qat_tft.errors import ConfigError
from qat_tft.quantization.scheme import TARGETS


@given(
    hidden=st.integers(1, 64).map(lambda n: 4 * n),
    quantiles=st.sets(st.floats(0.01, 0.99), min_size=1, max_size=5).map(sorted),
    cut=st.one_of(st.none(), st.dates().map(str), st.integers().map(str)),
)
def test_a_configuration_survives_toml(hidden, quantiles, cut):
    values = {
        "data": {
            "validation_from": cut,
            "test_from": cut,
            "parquet_files": ["a b.parquet", 'q"uote.parquet'],
        },
        "model": {"hidden": hidden, "quantiles": quantiles},
    }
    config = RunConfig.checked(values, where="the test")
    assert RunConfig.from_toml(config.to_toml()) == config


@pytest.mark.parametrize(
    ("text", "named"),
    [
        pytest.param("[model]\nhiden = 3", "unknown key model.hiden", id="unknown-key"),
        pytest.param("[modle]\nhidden = 3", "unknown key modle", id="unknown-section"),
        pytest.param("[model]\nhidden = 33", "model.heads 4 must divide model.hidden 33", id="heads"),
        pytest.param("[model]\nquantiles = [0.9, 0.1]", "ascending", id="quantiles"),
        pytest.param("[model]\nquantiles = [0.0]", "model.quantiles.0", id="quantile-out-of-range"),
        pytest.param(
            '[model]\nhistory = 5\nlinear_path = "off"\nnormalize = "series"\nseasonal_difference = 6',
            "must not exceed model.history 5",
            id="season",
        ),
        pytest.param("[model]\nseasonal_difference = 6", "goes with model.linear_path off", id="season-and-path"),
        pytest.param("[data]\nvalidation = 0.6\ntest = 0.4", "leave no training rows", id="shares"),
        pytest.param("[data]\ntest_from = '2020-01-01'", "data.validation_from and data.test_from", id="one-cut"),
        pytest.param("[training]\nepochs = 'many'", "training.epochs", id="not-a-number"),
        pytest.param("[quantization]\nuse_int8 = true", "set quantization.use_qat", id="int8-without-qat"),
        pytest.param(
            "[training]\nuse_gradient_checkpointing = true\ncheckpoint_mode = 'off'", "contradicts", id="mode"
        ),
        pytest.param("[training\n", "not TOML", id="not-toml"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(text, named):
    with pytest.raises(ConfigError, match=named.replace(".", r"\.")) as refused:
        RunConfig.from_toml(text, where="my.toml")
    assert str(refused.value).startswith("my.toml: ")


def test_an_unknown_key_lists_the_known_ones():
    with pytest.raises(ConfigError) as refused:
        RunConfig.from_toml("[training]\nepoch = 3")
    assert "batch_size" in refused.value.allowed


def test_cuts_may_be_dates_and_numbers_of_toml():
    config = RunConfig.from_toml("[data]\nvalidation_from = 2015-12-31\ntest_from = 2016-02-01T06:00:00")
    assert (config.data.validation_from, config.data.test_from) == ("2015-12-31", "2016-02-01 06:00:00")
    assert RunConfig.from_toml("[data]\nvalidation_from = 70\ntest_from = 80").data.test_from == "80"


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        pytest.param({}, "off", id="default"),
        pytest.param({"use_gradient_checkpointing": True}, "full", id="use-gradient-checkpointing"),
        pytest.param({"checkpoint_mode": "aggressive"}, "aggressive", id="mode"),
        pytest.param({"use_gradient_checkpointing": True, "checkpoint_mode": "aggressive"}, "aggressive", id="both"),
    ],
)
def test_the_checkpointing_mode_comes_from_two_settings(given, mode):
    config = RunConfig.checked({"training": given}, where="the test")
    assert config.training.segments_mode == mode


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('checkpoint_segments = "future_selection, lstm_encoder"', id="one-text"),
        pytest.param('checkpoint_segments = ["future_selection", "lstm_encoder"]', id="list"),
    ],
)
def test_segments_of_ones_own_choice_are_recomputed_and_no_others(text):
    config = RunConfig.from_toml(f"[training]\n{text}\nuse_gradient_checkpointing = true")
    assert config.training.recomputed_segments == {"future_selection", "lstm_encoder"}
    assert RunConfig.from_toml(config.to_toml()) == config


@pytest.mark.parametrize("mode", list(Mode))
def test_without_a_choice_of_segments_the_mode_decides(mode):
    config = RunConfig.checked({"training": {"checkpoint_mode": mode.value}}, where="the test")
    assert config.training.recomputed_segments == segments_of(mode)


def test_an_unknown_segment_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"training\.checkpoint_segments: unknown segment 'lstm'") as refused:
        RunConfig.from_toml('[training]\ncheckpoint_segments = "lstm, head, lstm_encoder"')
    assert refused.value.allowed == ", ".join(EVERY_SEGMENT)
    with pytest.raises(ConfigError, match="no segment is given"):
        RunConfig.from_toml("[training]\ncheckpoint_segments = []")


def test_a_mode_and_a_choice_of_segments_contradict_each_other():
    with pytest.raises(ConfigError, match=r"training\.checkpoint_mode and training\.checkpoint_segments"):
        RunConfig.from_toml('[training]\ncheckpoint_mode = "full"\ncheckpoint_segments = "lstm_encoder"')


def test_the_names_of_modes_and_targets_are_those_of_their_rooms():
    assert get_args(ModeName) == tuple(Mode)
    assert get_args(QuantizationConfig.model_fields["target"].annotation) == tuple(TARGETS)


def test_the_demo_settings_are_valid():
    assert RunConfig.checked(DEMO, where="the demo").training.batches_per_epoch


@pytest.mark.parametrize("setting", ["validation", "test", "validation_from", "test_from"])
def test_a_split_that_is_given_replaces_the_whole_split_of_the_demo(setting):
    assert demo_settings(["training.epochs", "data.test_until"]) == DEMO
    left = demo_settings(["training.epochs", f"data.{setting}"])
    assert left == {section: settings for section, settings in DEMO.items() if section != "data"}


@pytest.mark.parametrize(
    ("selection", "device", "chunk"),
    [("tabulated", "cpu", 32), ("exact", "cpu", 4), ("tabulated", "cuda", 128), ("exact", "cuda", 32)],
)
def test_selections_compute_in_chunks_that_suit_the_device_a_run_starts_on(selection, device, chunk):
    started = RunConfig.checked({"model": {"selection": selection}}, where="the test").with_selection_chunks(device)
    assert started.model.selection_chunk == started.model.variables_together == chunk
    assert started.quantization.qat_selection_chunk is None
    loaded = RunConfig.from_run(started.to_toml())
    for other in ("cpu", "cuda"):
        assert loaded.with_selection_chunks(other) == loaded, "what was decided once holds wherever the run goes on"


def test_a_chunk_that_is_given_holds_on_every_device_and_for_every_form():
    values = {"model": {"selection": "exact", "selection_chunk": 7}, "quantization": {"qat_selection": "tabulated"}}
    config = RunConfig.checked(values, where="the test")
    assert config.with_selection_chunks("cuda") == config
    assert config.model.variables_together == 7


@pytest.mark.parametrize(("device", "exact", "tabulated"), [("cpu", 4, 32), ("cuda", 32, 128)])
def test_qat_in_another_form_has_a_chunk_of_its_own(device, exact, tabulated):
    values = {"model": {"selection": "exact"}, "quantization": {"qat_selection": "tabulated"}}
    config = RunConfig.checked(values, where="the test").with_selection_chunks(device)
    assert (config.model.selection_chunk, config.quantization.qat_selection_chunk) == (exact, tabulated)
    anew = config.requantized({"quantization.qat_selection": "exact"}, where="the test")
    assert anew.with_qat_selection_chunk("cuda").quantization.qat_selection_chunk is None
    assert anew.model.selection_chunk == exact


def test_a_missing_configuration_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing\.toml"):
        read_config_file(tmp_path / "nothing.toml")


@pytest.mark.parametrize(
    ("home", "caches", "folder"),
    [
        pytest.param("/home/mine", None, Path("/home/mine/.cache/qat-tft"), id="home"),
        pytest.param("/home/mine", "/caches", Path("/caches/qat-tft"), id="folder for caches"),
        pytest.param("~", "/caches", Path("/caches/qat-tft"), id="folder for caches and no home"),
        pytest.param("~", None, None, id="no home"),
    ],
)
def test_prepared_rows_are_kept_where_the_user_has_a_place_for_them(monkeypatch, home, caches, folder):
    monkeypatch.setattr(os.path, "expanduser", lambda _: home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if caches:
        monkeypatch.setenv("XDG_CACHE_HOME", caches)
    assert DataConfig().cache_folder == folder
    assert DataConfig(cache_dir="/named").cache_folder == Path("/named")
    assert DataConfig(cache=False).cache_folder is None
