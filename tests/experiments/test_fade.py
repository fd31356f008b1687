"""The experiment on FADE: tuning, time to a level, and a verdict that follows the numbers."""

import numpy as np
import pytest

from fade_sim.config import resolve
from fade_sim.experiments import fade
from fade_sim.experiments.cells import Cells
from fade_sim.experiments.claim import FAILS, HOLDS, UNDER
from fade_sim.experiments.fade_numbers import Regime
from fade_sim.experiments.numbers import raw
from fade_sim.sim import Trace

SEEDS = 10
STEPS = np.array([0, 100, 200, 300, 400])
LABELS = tuple(c.label for c in resolve(raw("x", fade.STATIC + fade.ADAPTIVE, {}), {}).contenders)
METRICS = ("test_pass@1", "test_pass@10", "test_pass@100", "test_entropy_success", "train_entropy_success",
           "train_entropy", "test_modes", "alpha", "delta", "phat", "Hhat")
NOISE = 0.002 * np.linspace(-1, 1, SEEDS)
SLOW, FAST, FLAT = (0.1, 0.3, 0.5, 0.6, 0.7), (0.1, 0.6, 0.75, 0.75, 0.75), (0.1, 0.2, 0.2, 0.2, 0.2)


def trace(default=SLOW, **curves) -> Trace:
    """Every metric of a rule follows its curve; the rules jitter independently from seed to seed."""
    rng = np.random.default_rng(0)
    rows = np.array([np.asarray(curves.get(label, default)) + rng.permutation(NOISE)[:, None] for label in LABELS])
    return Trace(LABELS, tuple(range(SEEDS)), STEPS, {name: rows for name in METRICS})


def verdict(**regimes):
    return fade.score({"regimes": regimes, "odd": {}})


def test_the_verdict_follows_the_numbers():
    yes, no = {1.0: trace(fade=FAST)}, {1.0: trace()}
    assert verdict(a=yes, b=yes).verdict == HOLDS
    some = verdict(a=yes, b=no)
    assert (some.verdict, some.conditions) == (UNDER, ("a",))
    assert verdict(a=no).verdict == FAILS


def test_a_faster_rule_that_ends_inside_the_front_does_not_hold():
    """FADE is at the static peak of .7 by step 100, but falls to .6 in the end, below every static rule."""
    assert verdict(a={1.0: trace(fade=(0.1, 0.72, 0.72, 0.6, 0.6))}).verdict == FAILS


def test_a_rule_is_judged_at_its_own_best_rate():
    """dr_grpo is slow at rate 1 and fast at 2: FADE, fast at both, is then no better."""
    regime = Regime("x", {1.0: trace(fade=FAST), 2.0: trace(default=FLAT, fade=FAST, dr_grpo=FAST), 4.0: trace(FLAT)})
    assert regime.best_rate("dr_grpo") == 2.0 and regime.best_rate("power(2)") == 1.0
    assert not regime.at_edge("dr_grpo") and regime.at_edge("power(2)")
    assert verdict(a=regime.traces).verdict == FAILS


def test_steps_to_a_level():
    regime = Regime("x", {1.0: trace(fade=FAST)})
    assert regime.reaches("fade", np.full(SEEDS, 0.5)).tolist() == [100] * SEEDS
    assert regime.reaches("dr_grpo", np.full(SEEDS, 0.55)).tolist() == [300] * SEEDS
    assert regime.reaches("dr_grpo", np.full(SEEDS, 0.9)).tolist() == [500] * SEEDS  # never: one record past 400


@pytest.mark.parametrize("name", fade.REGIMES)
def test_every_regime_is_a_config(name):
    world, train, rates = fade.REGIMES[name]
    assert list(rates) == sorted(set(rates)) and len(rates) >= 5
    (regime,) = resolve(raw("x", fade.STATIC, {**train, "lr": rates[0]}, {"name": world}), {}).regimes
    assert regime.world.name == world


def test_end_to_end(tmp_path):
    settings = {"regimes": ("split_rare, Adam",), "rates": (0.04, 0.16), "odd": ("clip, lr 40",),
                "train": {"steps": 20, "seeds": 2, "record": 10, "lr_table": 0.0}}
    short = {**fade.ODD, "steps": 20}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fade, "ODD", short)
        found = fade.run(settings, Cells(tmp_path, threads=1))
    assert fade.score(found).verdict in (HOLDS, UNDER, FAILS)
    fade.figure(found, tmp_path / "fade.png")
    assert (tmp_path / "fade.png").stat().st_size > 10_000
