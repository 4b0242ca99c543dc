"""A whole run on rows that are not complete: missing values, short and new series, and a transformed target."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from qat_tft.cli.app import main
from qat_tft.runs.folder import RunFolder

OPTIONS = {
    "--time": "t",
    "--target": "sold",
    "--id": "shop",
    "--observed": "visitors",
    "--known": "price",
    "--missing": "forward,visitors=zero",
    "--min-history": "3",
    "--target-transform": "log1p",
    "--history": "8",
    "--horizon": "2",
    "--hidden": "8",
    "--heads": "2",
    "--epochs": "1",
    "--batches-per-epoch": "2",
    "--batch-size": "8",
    "--qat-epochs": "1",
}


@pytest.fixture(scope="module")
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shops of 60, 60, 10 and 4 weeks; the third opens after training has ended, the fourth is too young."""
    random = np.random.default_rng(0)
    tables = []
    for shop, rows in (("old", 60), ("other", 60), ("new", 10), ("young", 4)):
        columns = {"sold": random.poisson(5, rows) * 1.0, "visitors": random.normal(50, 9, rows)}
        columns["price"] = random.normal(3, 1, rows)
        holed = {name: pa.array(values, mask=random.random(rows) < 0.25) for name, values in columns.items()}
        tables.append(pa.table({"shop": [shop] * rows, "t": np.arange(60 - rows, 60), **holed}))
    path = tmp_path_factory.mktemp("data") / "shops.parquet"
    pq.write_table(pa.concat_tables(tables), path)
    return path


def trained(data_file: Path, runs: Path, *options: str) -> RunFolder:
    given = [word for pair in OPTIONS.items() for word in pair]
    words = ["train", "--parquet-file", str(data_file), *given, *options]
    assert main([*words, "--runs-dir", str(runs), "--name", "shops"]) == 0
    return RunFolder.open(runs / "shops")


def test_a_run_trains_on_what_is_there_and_checkpointing_changes_no_bit(
    data_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = trained(data_file, tmp_path / "plain", "--use-qat")
    said = capsys.readouterr()
    assert "1 of 4 series are skipped because they have fewer than 5 rows: shop=young" in " ".join(
        (said.out + said.err).split()
    )
    results = plain.load_results()
    assert all(np.isfinite(risks).all() for risks in results.q_risk.values())
    assert "history.present" not in (plain.path / "schema.toml").read_text()
    historical = plain.load_effective_schema().group("historical").real
    assert historical == ("sold", "visitors", "visitors.missing", "history.present", "price")

    windows = plain.load_check_windows()
    assert windows.target.isnan().any()
    assert not windows.target.isnan().all(1).any()
    assert not windows.historical.isnan().any()
    assert (windows.historical[..., historical.index("history.present")] == 0).any()

    recomputed = trained(data_file, tmp_path / "recomputed", "--use-gradient-checkpointing")
    ours, theirs = (load_file(run.path / "fp32.safetensors") for run in (recomputed, plain))
    assert all(ours[name].equal(theirs[name]) for name in theirs)
