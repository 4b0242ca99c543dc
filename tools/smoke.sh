#!/bin/sh
# Use an installed qat-tft in an empty folder: tools/smoke.sh BIN [--export], where BIN holds the environment's commands.
# With --export, train for INT8 too, and write and use the file.
set -eu
bin=$(cd "$1" && pwd)
qat=
[ "${2:-}" != --export ] || qat=--use-qat
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

"$bin/python" -m qat_tft --help > help.txt
"$bin/qat-tft" sample-data --preset rentals --out rentals.parquet
"$bin/qat-tft" train --parquet-file rentals.parquet --epochs 1 --batches-per-epoch 1 --batch-size 4 \
    --history 6 --horizon 3 --hidden 4 --heads 1 --linear-path off \
    --validation-from 2012-12-30 --test-from 2012-12-31 --name smoke $qat
test -s runs/smoke/results.json
[ -n "$qat" ] || exit 0
"$bin/qat-tft" export --int8
"$bin/qat-tft" predict runs/smoke/model.int8.onnx --parquet-file rentals.parquet --origin 2012-12-31 --out forecasts.parquet
test -s forecasts.parquet
