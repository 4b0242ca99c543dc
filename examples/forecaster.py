"""From a table in memory to scores, explanations and forecasts: ten weeks of the embedded bike rentals.

    python forecaster.py                      # trains, scores and explains in seconds
    python forecaster.py forecasts.parquet    # exports too, and forecasts with the ONNX file

`rentals` could as well be a DataFrame of pandas or polars, or a relation of DuckDB: see docs/python-api.md.
"""

import sys
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq

from qat_tft import Forecaster, embedded_rentals


def main(out: str | None = None) -> None:
    path, schema = embedded_rentals()
    rentals = pq.read_table(path).slice(0, 1680)
    with TemporaryDirectory() as runs:
        forecaster = Forecaster(schema, history=24, horizon=6, hidden=8, epochs=2, runs_dir=runs)
        forecaster.fit(rentals)
        for forecast, risks in forecaster.results.q_risk.items():
            print(f"q-risk of {forecast}: {risks}")

        scores = forecaster.backtest(stride=7)["models"]["fp32"]
        print(f"backtest: MAE {scores['mae']:.1f}, MASE {scores['mase']:.2f}")

        weights = forecaster.explain().group_by(["weight_of", "variable"]).aggregate([("mean", "max")])
        print("most weight:", weights.sort_by([("mean_max", "descending")]).slice(0, 3).to_pylist())

        if out is not None:
            pq.write_table(forecaster.predict(rentals), out)


if __name__ == "__main__":
    main(*sys.argv[1:])
