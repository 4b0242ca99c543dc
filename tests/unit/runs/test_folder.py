"""A run folder is found, or refused with a message; a finished one is never half-written."""

from datetime import datetime

import pytest
import torch

from qat_tft.errors import ConfigError, RunFolderError
from qat_tft.runs import files, lifecycle
from qat_tft.runs.build import build_model
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.results import RunResults

RESULTS = RunResults(
    run="mine",
    quantiles=(0.1, 0.5),
    season=24,
    q_risk={"fp32": (0.1, 0.2), "seasonal_naive": (0.2, 0.3)},
    windows={"test_evaluated": 3},
    validation_loss={"fp32": 0.5},
    parameters=7,
    seconds=1.5,
)
SAVED = {"mode": "full", "windows": 8, "without_bytes": 2, "with_bytes": 1, "saved": 0.5, "without_seconds": 1.0}


@pytest.fixture
def finished(tmp_path, config, schema, data) -> RunFolder:
    folder = RunFolder.create(tmp_path, "mine")
    folder.write_setup(config, schema, data.preprocessing)
    folder.write_weights("fp32", build_model(config.model, data.preprocessing, schema).state_dict())
    folder.write_check_windows(data.test[[0, 1, 2]])
    folder.write_results(RESULTS)
    folder.finish()
    return folder


def test_what_was_written_comes_back(finished, config, schema, data):
    again = RunFolder.open(finished.path)
    assert (again.name, again.load_config(), again.load_schema()) == ("mine", config, schema)
    assert again.load_preprocessing() == data.preprocessing
    assert again.load_check_windows().target.equal(data.test[[0, 1, 2]].target)
    assert not again.load_fp32_model().training
    assert again.load_results() == RESULTS


def test_a_run_that_does_not_tell_its_products_has_them_on_integers(finished):
    """It is of a version that knew no others; what a run of this version decided on is written."""
    path = finished.path / "config.toml"
    text = path.read_text()
    assert 'products = "integer"' in text
    path.write_text(text.replace('products = "integer"\n', ""))
    assert finished.load_config().quantization.products == "integer"
    path.write_text(text.replace('products = "integer"', 'products = "float"'))
    assert finished.load_config().quantization.products == "float"


def test_a_run_that_does_not_tell_its_form_of_selection_is_exact(finished):
    path = finished.path / "config.toml"
    text = path.read_text()
    assert 'selection = "tabulated"' in text
    path.write_text(text.replace('selection = "tabulated"\n', "").replace("knots = 65\n", ""))
    assert finished.load_config().model.selection == "exact"
    assert finished.load_config().qat_selection == "exact"


def test_the_latest_finished_run_is_found_by_all_its_names(finished, tmp_path):
    for run in (None, "latest", "mine", str(finished.path)):
        assert RunFolder.find(run, tmp_path).path == finished.path


def test_an_unfinished_run_is_not_a_run_yet(tmp_path, finished):
    RunFolder.create(tmp_path, "next")
    assert RunFolder.latest(tmp_path).name == "mine"
    with pytest.raises(RunFolderError, match=r"not finished\. Finish it with `qat-tft train --resume next`"):
        RunFolder.find("next", tmp_path)
    assert RunFolder.unfinished(tmp_path).name == "next"
    assert RunFolder.unfinished(tmp_path, "next").name == "next"


@pytest.mark.parametrize("name", ["", "a/b", "..", "latest", "x.unfinished", ".hidden", "x" * 201])
def test_a_name_that_cannot_be_a_folder_is_refused(tmp_path, name):
    with pytest.raises(RunFolderError, match="is not a valid run name"):
        RunFolder.create(tmp_path, name)


def test_a_taken_name_is_refused(tmp_path, finished):
    with pytest.raises(RunFolderError, match="finished run of that name"):
        RunFolder.create(tmp_path, "mine")
    RunFolder.create(tmp_path, "next")
    with pytest.raises(RunFolderError, match=r"unfinished run of that name already.*--resume next"):
        RunFolder.create(tmp_path, "next")


def test_runs_of_the_same_second_get_different_names(tmp_path):
    assert len({RunFolder.create(tmp_path).name for _ in range(3)}) == 3


def test_a_name_that_became_free_is_no_trap(tmp_path, monkeypatch):
    """Clocks are set back, and runs are deleted."""

    class Stopped:
        @staticmethod
        def now():
            return datetime(2024, 10, 27, 2, 30)

    monkeypatch.setattr(lifecycle, "datetime", Stopped)
    first, second, _ = (RunFolder.create(tmp_path) for _ in range(3))
    second.path.rmdir()
    assert RunFolder.create(tmp_path).path == second.path
    assert first.name == "20241027-023000"


def test_an_unwritable_runs_folder_is_named(tmp_path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(RunFolderError, match="cannot create the run folder"):
        RunFolder.create(tmp_path / "runs", "mine")


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        pytest.param(lambda root: RunFolder.latest(root), "no finished run", id="latest"),
        pytest.param(lambda root: RunFolder.find("other", root), "no run folder", id="name"),
        pytest.param(lambda root: RunFolder.unfinished(root), "no unfinished run", id="unfinished"),
        pytest.param(lambda root: RunFolder.unfinished(root, "other"), "called 'other'", id="unfinished-name"),
        pytest.param(lambda root: RunFolder.open(root), "no config.toml", id="foreign-folder"),
    ],
)
def test_a_run_that_is_not_there_says_what_to_do(tmp_path, ask, message):
    with pytest.raises(RunFolderError, match=message):
        ask(tmp_path)


def test_resuming_a_finished_run_is_refused(finished, tmp_path):
    with pytest.raises(RunFolderError, match="finished: nothing to resume"):
        RunFolder.unfinished(tmp_path, "mine")


@pytest.mark.parametrize(
    ("name", "load"),
    [
        ("config.toml", RunFolder.load_config),
        ("schema.toml", RunFolder.load_schema),
        ("preprocessing.json", RunFolder.load_preprocessing),
        ("fp32.safetensors", RunFolder.load_fp32_model),
        ("check_windows.safetensors", RunFolder.load_check_windows),
        ("results.json", RunFolder.load_results),
    ],
)
def test_a_missing_or_damaged_file_is_named(finished, name, load):
    path = finished.path / name
    content = path.read_bytes()
    middle = len(content) // 2
    cut = max(content.find(b"=", middle) + 1, middle)  # TOML that is cut off after a whole line is TOML
    for damaged in (content[:cut], b"\x00nonsense", None):
        if damaged is None:
            path.unlink()
        else:
            path.write_bytes(damaged)
        with pytest.raises(RunFolderError, match=name.replace(".", r"\.")):
            load(finished)


def test_weights_of_another_shape_are_refused(finished, config):
    other = config.model_copy(update={"model": config.model.model_copy(update={"hidden": 16})})
    files.write_text(finished.path / "config.toml", other.to_toml())
    with pytest.raises(RunFolderError, match=r"do not fit config\.toml"):
        finished.load_fp32_model()


def test_a_run_without_quantization_has_no_qat_model(finished):
    with pytest.raises(RunFolderError, match="trained without quantization"):
        finished.load_qat_model()


def test_fp32_weights_are_not_taken_for_quantized_ones(finished):
    (finished.path / "qat.safetensors").write_bytes((finished.path / "fp32.safetensors").read_bytes())
    with pytest.raises(RunFolderError, match="holds 'fp32', not 'qat'"):
        finished.load_qat_model()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda windows: windows._replace(historical=windows.historical.double()), id="other type"),
        pytest.param(lambda windows: windows._replace(series=windows.series.float()), id="series that are no integers"),
        pytest.param(lambda windows: windows._replace(target=windows.target[:2]), id="fewer targets"),
    ],
)
def test_check_windows_of_another_type_or_number_are_refused(finished, change):
    finished.write_check_windows(change(finished.load_check_windows()))
    with pytest.raises(
        RunFolderError, match=r"check_windows\.safetensors: \w+ of the check windows is torch\.\w+ of shape"
    ):
        finished.load_check_windows()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(lambda one: one._replace(**{n: t[:0] for n, t in one._asdict().items() if t is not None}),
                     "there is no window", id="none"),
        pytest.param(lambda one: one._replace(series=one.series + 9), "a code of no series", id="series"),
        pytest.param(lambda one: one._replace(static=one.static + 0.5), "a code of no category", id="category"),
        pytest.param(lambda one: one._replace(historical=one.historical / 0), "NaN or infinity", id="values"),
        pytest.param(lambda one: one._replace(target=one.target / 0), "target .* infinity", id="target"),
    ],
)  # fmt: skip
def test_check_windows_that_no_run_has_are_refused(finished, change, said):
    finished.write_check_windows(change(finished.load_check_windows()))
    with pytest.raises(RunFolderError, match=f"check_windows.*{said}"):
        finished.load_check_windows()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused_by_name(finished, value):
    weights = finished.read_weights("fp32")
    name = min(weights)
    weights[name].view(-1)[0] = value
    finished.write_weights("fp32", weights)
    with pytest.raises(RunFolderError, match=rf"fp32\.safetensors: '{name}' holds NaN or infinity"):
        finished.load_fp32_model()


@pytest.mark.parametrize("dtype", [torch.float16, torch.complex64, torch.int64])
def test_weights_of_another_type_are_not_converted(finished, dtype):
    finished.write_weights("fp32", {name: one.to(dtype) for name, one in finished.read_weights("fp32").items()})
    with pytest.raises(RunFolderError, match=f"is of type {dtype}"):
        finished.load_fp32_model()


@pytest.mark.parametrize(
    "name",
    ["../../etc", "/", "", "a\x00b", "n" * 5000, "\x1b[31m"],
    ids=["up", "root", "empty", "NUL", "long", "escape"],
)
def test_latest_names_a_run_beside_it_and_nothing_else(finished, name):
    (finished.path.parent / "latest").write_text(name)
    with pytest.raises(RunFolderError, match="latest: does not name a run"):
        RunFolder.latest(finished.path.parent)


@pytest.mark.parametrize(
    "report", [{}, {"passed": "yes"}, {"passed": True, "sqnr_db": [1]}, {"passed": True, "sqnr_db": {"a": "b"}}]
)
def test_a_report_that_no_check_wrote_is_refused(finished, report):
    finished.write_check(report)
    with pytest.raises(RunFolderError, match=r"check\.json: not the report of a check"):
        finished.load_check()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda value: value.update(seconds="long"), id="text for a number"),
        pytest.param(lambda value: value.update(q_risk={}), id="no model"),
        pytest.param(lambda value: value.update(quantiles=[0.5]), id="other quantiles"),
        pytest.param(lambda value: value.update(checkpointing={"mode": "full"}), id="savings without figures"),
        pytest.param(lambda value: value.update(checkpointing={**SAVED, "with_seconds": "1"}), id="a time in words"),
    ],
)
def test_results_that_no_run_wrote_are_refused(finished, change):
    value = files.read_json(finished.path / "results.json")
    change(value)
    files.write_json(finished.path / "results.json", value)
    with pytest.raises(RunFolderError, match="results of a run"):
        finished.load_results()


def test_a_model_that_no_memory_holds_is_refused_before_it_is_built(config, schema, data):
    for hidden in (10**7, 10**12):
        shape = config.model.model_copy(update={"hidden": hidden})
        with pytest.raises(ConfigError, match=r"model\.hidden: .* GiB of weights"):
            build_model(shape, data.preprocessing, schema)
