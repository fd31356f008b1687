"""Spectrum of the difference of two checkpoints, streamed."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fade_sim.diagnostics import spectrum
from llm import cli
from llm import spectrum as module
from llm.spectrum import compare


@pytest.fixture
def folders(tmp_path):
    """Two checkpoints: a tall, a wide, a rank-1, an unchanged and a bfloat16 matrix, a vector, names of one only."""
    rng = torch.Generator().manual_seed(0)
    a = {"tall": torch.randn(40, 7, generator=rng), "wide": torch.randn(5, 33, generator=rng),
         "line": torch.randn(12, 9, generator=rng), "same": torch.ones(4, 4), "bias": torch.zeros(3),
         "half": torch.randn(6, 6, generator=rng).bfloat16(), "old": torch.zeros(2, 2)}
    b = {k: v.clone() for k, v in a.items() if k != "old"} | {"new": torch.zeros(2, 2)}
    b["tall"] += 0.1 * torch.randn(40, 7, generator=rng)
    b["wide"] += 0.1 * torch.randn(5, 33, generator=rng)
    b["line"] += torch.outer(torch.randn(12, generator=rng), torch.randn(9, generator=rng))
    b["half"] += torch.randn(6, 6, generator=rng).bfloat16()
    for name, tensors in (("a", a), ("b", b)):
        (tmp_path / name).mkdir()
        half = len(tensors) // 2
        parts = list(tensors.items())
        save_file(dict(parts[:half]), str(tmp_path / name / "model-1.safetensors"))
        save_file(dict(parts[half:]), str(tmp_path / name / "model-2.safetensors"))
    return tmp_path / "a", tmp_path / "b", a, b


@pytest.mark.parametrize("block", [1, 50, 2**24])
def test_ranks_equal_those_of_a_whole_decomposition(folders, monkeypatch, block):
    """Whatever the size of a block: D^T D summed over blocks has the squared singular values of D."""
    monkeypatch.setattr(module, "_BLOCK", block)
    before, after, a, b = folders
    rows, lonely = compare(before, after)
    assert lonely == ["new", "old"] and {r.name for r in rows} == {"tall", "wide", "line", "same", "half"}
    for row in rows:
        difference = (b[row.name].double() - a[row.name].double()).numpy()
        if row.name == "same":
            assert row.norm == 0.0 and np.isnan(row.rank1)
            continue
        expected = spectrum(difference)
        assert (row.rank1, row.stable_rank, row.effective_rank) == pytest.approx(expected, rel=1e-7)
        assert row.norm == pytest.approx(np.linalg.norm(difference))
        assert row.relative == pytest.approx(np.linalg.norm(difference) / np.linalg.norm(a[row.name].double()))
    assert next(r for r in rows if r.name == "line").effective_rank == pytest.approx(1.0, abs=1e-5)


def test_the_command_prints_and_writes_them(folders, tmp_path, capsys):
    before, after, _, _ = folders
    assert cli.main(["spectrum", str(before), str(after), "--json", str(tmp_path / "s.json")]) == 0
    out = capsys.readouterr().out
    assert "line" in out and "1.000" in out and "only in one of the two: new, old" in out
    got = json.loads((tmp_path / "s.json").read_text())
    assert got["matrices"]["same"]["rank1"] is None and got["unmatched"] == ["new", "old"]


def test_unlike_checkpoints_are_refused(tmp_path):
    for name, tensors in (("a", {"w": torch.ones(2, 3)}), ("b", {"w": torch.ones(3, 2)}), ("c", {"v": torch.ones(1)}),
                          ("d", {"w": torch.full((2, 3), float("nan"))})):
        save_file(tensors, str(tmp_path / f"{name}.safetensors"))
    a, b, c, d = (tmp_path / f"{n}.safetensors" for n in "abcd")
    for other, says in ((b, "has shape"), (c, "no tensor name in common"), (d, "non-finite")):
        with pytest.raises(ValueError, match=says):
            compare(a, other)
    (tmp_path / "e.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="cannot be read"):
        compare(a, tmp_path / "e.safetensors")
