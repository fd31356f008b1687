"""The experiment on the identity: it judges by the numbers, and its exact part is exact."""

import numpy as np
import pytest

from fade_sim.experiments import identity, identity_exact
from fade_sim.experiments.cells import Cells
from fade_sim.experiments.claim import FAILS, HOLDS, UNDER
from fade_sim.sim import Trace

SEEDS = 10
DELTAS = (0.125, 0.25, 0.5, 1, 2, 4, 8)
LABELS = (*(f"asym_pure_loo({d:g})" for d in DELTAS), *(f"baseline({b:g})" for b in (0, 0.25, 0.5, 0.75, 1)))
RATIO = (*DELTAS, 1e9, 3.0, 1.0, 1 / 3, 1e-9)
NOISE = 0.001 * np.linspace(-1, 1, SEEDS)


def trace(slope: float, labels=LABELS, ratio=RATIO, noise=NOISE) -> Trace:
    """Solve rate .2 at the start and 1 at the end; every entropy `slope` times the log sign ratio, plus the noise of
    a seed times that ratio."""
    x = np.log(ratio)[:, None]
    value = np.repeat((2.0 + x * (slope + noise))[:, :, None], 2, axis=2)
    values = {metric: value for metric, _ in identity.PARTS} | {"rank1": value}
    values["train_pass@1"] = np.broadcast_to([0.2, 1.0], value.shape)
    values["m_F"] = np.ones_like(value)
    values["m_S"] = np.array(ratio)[:, None, None] * values["m_F"]
    return Trace(labels, tuple(range(SEEDS)), np.array([0, 100]), values)


def results(**switches: tuple[float, float]) -> dict:
    """Per switch (slope of the entropies, distance of the heads in exact expectation)."""
    names = {name.replace("_", " "): value for name, value in switches.items()}
    deltas = (0.25, 0.5, 1, 2, 4)
    labels = tuple(f"asym_delta({d:g})" for d in deltas)
    return {"traces": {name: trace(slope) for name, (slope, _) in names.items()},
            "asym": {name: trace(slope, labels, deltas) for name, (slope, _) in names.items()},
            "apart": {name: np.full((3, SEEDS), apart) for name, (_, apart) in names.items()},
            "gradients": {4: {"rloo": np.ones((SEEDS, 2)), "dr_grpo": 0.75 * np.ones((SEEDS, 2)),
                              "nsr": np.ones((SEEDS, 2))}}}


def test_the_verdict_follows_the_numbers():
    same, other = (0.0, 1e-15), (0.05, 3.0)
    assert identity.score(results(no_switch=same, stale=same)).verdict == HOLDS
    assert identity.score(results(no_switch=other, stale=other)).verdict == FAILS
    some = identity.score(results(no_switch=same, stale=other))
    assert some.verdict == UNDER
    assert some.conditions == ("in exact expectation, under: no switch", "in sampled training, under: no switch")


def test_the_two_tests_are_separate():
    sampled_only = identity.score(results(no_switch=(0.0, 3.0)))
    assert sampled_only.conditions == ("in sampled training, under: no switch",)
    exact_only = identity.score(results(no_switch=(0.05, 1e-15)))
    assert exact_only.conditions == ("in exact expectation, under: no switch",)


def test_a_wide_interval_around_zero_is_not_an_absence_of_effect():
    wide = results(no_switch=(0.0, 1e-15))
    wide["traces"]["no switch"] = trace(0.0, noise=100 * NOISE)
    got = identity.score(wide)
    assert got.conditions == ("in exact expectation, under: no switch",) and "not resolved: no switch" in got.because


def test_slopes_are_those_of_the_family_without_the_ends():
    """.05 per unit of log ratio for asym_pure_loo; the ends of the baselines, 18 to 20 units away, stay out."""
    row = identity.slopes_of("no switch", trace(0.05))[0]
    assert row.value == pytest.approx(0.05, rel=1e-9) and row.note.startswith("R2 1.00")
    assert row.prototype == "+.002+-.002"


def test_sign_drops_out_of_the_expected_gradient_and_dr_grpo_is_shorter():
    """Norm of dr_grpo over rloo: (G-1)/G = 3/4. asym_delta is another slope, so another direction."""
    rules = ({"name": "rloo"}, {"name": "dr_grpo"}, {"name": "baseline", "b": 0.0}, {"name": "nsr"},
             {"name": "asym_pure_loo", "delta": 0.125}, {"name": "asym_delta", "delta": 0.25})
    found = identity_exact.gradients(rules, 4, 2)
    for label in ("baseline(0)", "nsr", "asym_pure_loo(0.125)"):
        np.testing.assert_allclose(found[label], found["rloo"], rtol=0, atol=1e-15)
    np.testing.assert_allclose(found["dr_grpo"], 0.75 * found["rloo"], rtol=1e-13)
    assert (identity_exact.cosine(found["asym_delta(0.25)"], found["rloo"]) < 0.9995).all()


@pytest.mark.parametrize(("train", "apart"), [
    ({"lr": 10.0}, False), ({"lr": 0.02, "optimizer": "adam"}, False),
    ({"lr": 20.0, "staleness": 3, "correction": "ratio"}, False), ({"lr": 20.0, "staleness": 3}, True),
    ({"lr": 20.0, "epochs": 3}, True), ({"lr": 20.0, "epochs": 3, "correction": "ratio"}, False),
])
def test_heads_separate_only_where_data_are_old_and_not_corrected(train, apart):
    rules = ({"name": "baseline", "b": 0.0}, {"name": "nsr"}, {"name": "asym_pure_loo", "delta": 8.0})
    world = {"train_prompts": 8, "test_prompts": 1}
    got = identity_exact.distances({"lr_table": 0.0, **train}, world, rules, 6, 2)
    assert (got > 1e-3).all() if apart else (got < 1e-12).all()


def test_end_to_end(tmp_path):
    settings = {"switches": ("no switch", "table + groups of 4"),
                "train": {"lr": 10.0, "lr_table": 0.0, "record": 20, "steps": 260, "seeds": 2},
                "exact": {"steps": 3, "seeds": 1, "world": {"train_prompts": 8, "test_prompts": 1},
                          "group_sizes": (4,)}}
    results = identity.run(settings, Cells(tmp_path / "cells", threads=1))
    got = identity.score(results)
    assert "no switch" in got.conditions[0]
    identity.figure(results, tmp_path / "identity.png")
    assert (tmp_path / "identity.png").read_bytes()[:4] == b"\x89PNG"
