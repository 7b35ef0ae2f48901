"""The comparison of training on files and on what they are packed to runs, and both learn."""

import torch

from benchmarks.accuracy import ARMS, PHOTOGRAPHS, measure, table


def test_every_variant_yields_a_curve(tmp_path):
    random = torch.get_rng_state()
    curves = measure(tmp_path, seeds=1, epochs=1, count=8)
    torch.set_rng_state(random)
    assert set(curves) == set(ARMS)
    for (curve,) in curves.values():
        assert len(curve) == 1
        assert round(curve[0] * 8 * len(PHOTOGRAPHS)) in range(8 * len(PHOTOGRAPHS) + 1)
    assert table(curves).splitlines()[0] == "| after epoch | files | packed, antialias | packed |"
