"""One of two ranks that train together; run by test_exactness_of_training.py in a process of its own.

It trains each kind of model, fp32 and qat, in the modes off and full, and writes what happened to KIND.MODE.RANK.
Arguments: folder of these files, rank.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[2]))
from conftest import Sizes, build_model, run_training

from qat_tft.checkpointing.recompute import runner_for
from qat_tft.quantization.calibrate import calibrate
from qat_tft.quantization.prepare import QATTemporalFusionTransformer
from qat_tft.quantization.scheme import scheme_for

folder, rank = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
if sys.platform == "linux":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
distributed.init_process_group(
    "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
)
for kind in ("fp32", "qat"):
    for mode in ("off", "full"):
        model = build_model(dropout=0.2)
        if kind == "qat":
            model = QATTemporalFusionTransformer(model, scheme_for("x86"))
            generator = torch.Generator().manual_seed(rank)
            calibrate(model, [Sizes().inputs(8, generator) for _ in range(3)])
            model.set_phase("qat")
        # Buffers are not broadcast: the ranks' ranges must agree because the quantizers make them agree.
        parallel = DistributedDataParallel(model, broadcast_buffers=False)
        kept = run_training(parallel, runner_for(mode), steps=4, accumulation=2, clip=0.05, seed=10 + rank)
        save_file(kept, str(folder / f"{kind}.{mode}.{rank}"))
distributed.destroy_process_group()
