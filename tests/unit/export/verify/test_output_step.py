import numpy as np
import torch

from qat_tft.export.verify.output_step import output_step
from qat_tft.quantization.prepare import QATTemporalFusionTransformer
from qat_tft.quantization.scheme import scheme_for


@torch.no_grad()
def test_the_step_is_what_random_steps_of_the_heads_input_change(make_qat_model) -> None:
    # The naive way: move every input by one code up or down and look at the spread of the outcome.
    model = make_qat_model()
    model.set_phase("frozen")
    head = model.model.head
    middle = torch.full((1, 8), float(head.input.scale) * 100) - head.input.zero_point * head.input.scale
    signs = torch.tensor(np.array(np.meshgrid(*[[-1.0, 1.0]] * 8)).reshape(8, -1).T, dtype=torch.float32)
    moved = head(middle + signs * head.input.scale).double().numpy()
    assert np.allclose(output_step(model), moved.std(axis=0), rtol=1e-4)


def test_a_float_head_has_no_step(make_model) -> None:
    model = QATTemporalFusionTransformer(make_model(), scheme_for("x86"), frozenset({"head"}))
    assert output_step(model) is None
