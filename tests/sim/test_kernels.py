"""The compiled step against the NumPy reference: same uniforms, every switch."""

import math

import numpy as np
import pytest

from fade_sim.advantage import RULES, controller, make
from fade_sim.config import Contender, Train, World
from fade_sim.sim import kernels, layout, primitives, reference
from fade_sim.sim.measure import METRICS, measure
from fade_sim.sim.run import _Replica
from fade_sim.sim.world import as_float32, make_world

WORLD = make_world(World(train_prompts=12, test_prompts=5), seed=3)
LINEAR = make_world(World(train_prompts=12, test_prompts=5, policy="linear"), seed=3)
NOISY = make_world(World(train_prompts=12, test_prompts=5, false_negative=0.3, false_positive=0.1), seed=3)
BASE = dict(steps=30, prompts=8, group_size=4, lr=5.0, lr_table=0.5)
CONTROLLED = make("power_asym", alpha=2.0, delta=0.5)


def both(train: Train, method, ctrl=None, steps=30, seed=0, world=WORLD):
    """(kernel state, reference state, reference controller) after `steps` steps from the same start."""
    ctrl = ctrl or controller.init()
    fast = _Replica(train, Contender("x", method, ctrl), world, seed)
    slow = _Replica(train, Contender("x", method, ctrl), world, seed)
    fast.advance(steps, lambda n: None)
    for step in range(steps):
        ctrl = reference.train_step(world, slow.dyn, method, ctrl, slow.factor, slow.state, step)
    return fast.state, slow.state, ctrl


SWITCHES = {
    "sgd": {}, "adam": {"optimizer": "adam", "lr": 0.05}, "head only": {"lr_table": 0.0}, "table only": {"lr": 0.0},
    "stale": {"staleness": 7}, "stale ratio": {"staleness": 7, "correction": "ratio"},
    "stale clip": {"staleness": 7, "correction": "clip", "clip": 0.1},
    "epochs": {"epochs": 3, "correction": "clip"}, "stale adam epochs": {"epochs": 2, "staleness": 3,
                                                                        "optimizer": "adam", "lr": 0.05},
    "match mass": {"match": "mass"}, "match grad": {"match": "grad"}, "match slope": {"match": "slope"},
    "count": {"mode": "count"}, "count stale clip": {"mode": "count", "staleness": 4, "correction": "clip"},
    "dynamic": {"dynamic_sampling": True}, "dynamic count": {"dynamic_sampling": True, "mode": "count"},
    "dynamic, bounded": {"dynamic_sampling": True, "max_rounds": 1},
    "one rollout more than a group": {"group_size": 5}, "big groups": {"group_size": 64},
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_kernel_equals_reference_under_every_switch(switch):
    # Sums are reordered and exp comes from another library: agreement to 1e-9 after 30 steps, on
    # weights of size 1; a single flipped draw would show at 1e-2.
    fast, slow, _ = both(Train(**{**BASE, **SWITCHES[switch]}), CONTROLLED)
    for name in ("head", "theta", "table", *(["moment1", "moment2"] if fast.moment1 is not None else [])):
        np.testing.assert_allclose(getattr(fast, name), getattr(slow, name), rtol=0, atol=1e-9, err_msg=name)
    trained = np.abs(slow.head).max() + np.abs(slow.theta - WORLD.bias[:12]).max()
    assert trained > 0.05  # the runs did move


@pytest.mark.parametrize("world", [LINEAR, NOISY], ids=["linear", "noisy"])
@pytest.mark.parametrize("switch", ["sgd", "adam", "stale clip", "count", "dynamic", "match slope"])
def test_kernel_equals_reference_in_other_worlds(switch, world):
    fast, slow, _ = both(Train(**{**BASE, **SWITCHES[switch]}), CONTROLLED, world=world)
    for name in ("head", "theta", "table"):
        np.testing.assert_allclose(getattr(fast, name), getattr(slow, name), rtol=0, atol=1e-9, err_msg=name)
    assert np.abs(slow.head).max() > 0.05


@pytest.mark.parametrize("world", [WORLD, LINEAR], ids=["bilinear", "linear"])
@pytest.mark.parametrize("switch", ["sgd", "adam", "count", "stale clip"])
def test_single_precision_is_the_same_step(switch, world):
    """Same uniforms, logits rounded to 1e-7: no draw of these 30 steps flips, so the heads agree to 1e-5."""
    train = Train(**{**BASE, **SWITCHES[switch]})
    contender = Contender("x", CONTROLLED, controller.init())
    wide, narrow = (_Replica(train, contender, w, 0) for w in (world, as_float32(world)))
    for run in (wide, narrow):
        run.advance(30, lambda n: None)
    assert narrow.state.head.dtype == np.float32 and np.abs(wide.state.head).max() > 0.05
    np.testing.assert_allclose(narrow.state.head, wide.state.head, rtol=0, atol=2e-5)
    np.testing.assert_allclose(narrow.state.theta, wide.state.theta, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", [n for n in RULES if n != "table"])
def test_kernel_equals_reference_for_every_rule(name):
    fast, slow, ctrl = both(Train(**{**BASE, "group_size": 5, "dynamic_sampling": name == "dapo"}), make(name))
    np.testing.assert_allclose(fast.head, slow.head, rtol=0, atol=1e-9)
    np.testing.assert_allclose(fast.running[[layout.PHAT, layout.HHAT]], [ctrl.phat, ctrl.hhat], rtol=1e-12)


@pytest.mark.parametrize("settings", [
    {"ablation": a} for a in controller.ABLATIONS] + [
    {"relative": True, "h_star": 2.0}, {"ema_literal": True}, {"rate": 0.3, "delta_min": 0.5, "alpha_max": 2.0},
    {"h_star": 3.0}, {"h0": 3.0}])
@pytest.mark.parametrize("name", ["fade", "scale_only", "scale_ema", "fade_unit"])
def test_compiled_controller_equals_the_core(name, settings):
    fast, slow, ctrl = both(Train(**{**BASE, "lr": 20.0}), make(name), controller.init(**settings), steps=40)
    np.testing.assert_allclose(fast.table, slow.table, rtol=1e-10)
    np.testing.assert_allclose(fast.head, slow.head, rtol=0, atol=1e-8)
    np.testing.assert_allclose(fast.running[[layout.ALPHA, layout.DELTA]], controller.gains(ctrl), rtol=1e-10)


def test_normalize_reaches_the_kernel():
    # alpha_max pinned at 1 by phat = 1: C_mean(1) = 2*3/6 = 1, so only alpha > 1 shows the factor.
    plain, _, _ = both(Train(**BASE), make("fade"), steps=5)
    scaled, slow, ctrl = both(Train(**BASE), make("fade", normalize="half"), steps=5)
    np.testing.assert_allclose(scaled.table, slow.table, rtol=1e-12)
    alpha = controller.gains(ctrl)[0]
    assert alpha > 1.2
    assert not np.allclose(plain.table, scaled.table)


def test_uniforms_are_the_same_bits_and_uniform():
    key = np.uint64(0x0123456789ABCDEF)
    fast = [primitives.uniform(np.uint64(primitives.step_key(key, s)), i) for s in (0, 1, 999) for i in range(5)]
    assert fast == [reference.uniform(key, s, i) for s in (0, 1, 999) for i in range(5)]
    # Chi-square of 64 000 draws in 64 cells: 63 degrees of freedom, 99.99% point 113.
    stream = np.uint64(primitives.step_key(key, 5))
    u = np.array([primitives.uniform(stream, i) for i in range(64_000)])
    counts = np.bincount((u * 64).astype(int), minlength=64)
    assert ((counts - 1000) ** 2 / 1000).sum() < 113


def test_draws_follow_the_policy():
    """Chi-square of 400 steps x 8 prompts x 64 draws against mu, pooled over prompts by arm rank."""
    train = Train(**{**BASE, "lr": 0.0, "lr_table": 1e-300, "group_size": 64})
    run = _Replica(train, Contender("x", make("dr_grpo"), controller.init()), WORLD, 1)
    K = WORLD.bias.shape[1]
    drawn, wanted = np.zeros((12, K)), np.zeros((12, K))
    for step in range(400):
        run.state.history[0] = run.state.head
        kernels.sample(WORLD, run.dyn, run.state, run.log_binomial, step, run.batch)
        for b in range(8):
            drawn[run.batch.chosen[b]] += np.bincount(run.batch.arms[b, :64], minlength=K)
            wanted[run.batch.chosen[b]] += 64 * run.batch.mu[b]
    cells = wanted > 20
    chi2 = ((drawn - wanted) ** 2 / wanted)[cells].sum()
    freedom = cells.sum()  # about 300 cells; 5 standard deviations of slack, blind below a 1% shift of p
    assert abs(chi2 - freedom) < 5 * math.sqrt(2 * freedom)


def test_measure_equals_definitions():
    run = _Replica(Train(**BASE), Contender("x", CONTROLLED, controller.init()), WORLD, 0)
    state = run.state
    rng = np.random.default_rng(0)
    state.head[:] = rng.normal(size=state.head.shape)
    state.theta[:] += rng.normal(size=state.theta.shape)
    out = np.empty(len(METRICS))
    log_binomial = np.log([math.comb(3, c) for c in range(4)])
    measure(WORLD, state, log_binomial, 8, run.batch, out)
    got = dict(zip(METRICS, out, strict=True))
    pi = reference.policy(WORLD, np.arange(17), state.head, np.concatenate([state.theta, WORLD.bias[12:]]))
    p = (pi * WORLD.success).sum(axis=1)
    inside = pi * WORLD.success / p[:, None]
    outside = pi * ~WORLD.success / (1 - p)[:, None]
    modes = np.array([sum(1 - (1 - pi[x, WORLD.mode[x] == m].sum()) ** 16 for m in range(4)) for x in range(17)])
    w_s, w_f = reference.mean_weights(state.table, p)
    for split, rows in (("train", slice(0, 12)), ("test", slice(12, 17))):
        for k in (1, 10, 100):
            assert got[f"{split}_pass@{k}"] == pytest.approx((1 - (1 - p[rows]) ** k).mean(), rel=1e-12)
        assert got[f"{split}_entropy"] == pytest.approx(reference.entropy(pi[rows]).mean(), rel=1e-12)
        assert got[f"{split}_entropy_success"] == pytest.approx(reference.entropy(inside[rows]).mean(), rel=1e-12)
        assert got[f"{split}_entropy_failure"] == pytest.approx(reference.entropy(outside[rows]).mean(), rel=1e-12)
        assert got[f"{split}_modes"] == pytest.approx(modes[rows].mean(), rel=1e-12)
    assert got["m_S"] == pytest.approx((p * w_s)[:12].mean(), rel=1e-12)
    assert got["m_F"] == pytest.approx((-(1 - p) * w_f)[:12].mean(), rel=1e-12)


def test_extreme_logits_stay_finite():
    """A head of size 1e4 puts all mass on one arm: entropies 0, pass@k 0 or 1, nothing NaN."""
    run = _Replica(Train(**BASE), Contender("x", CONTROLLED, controller.init()), WORLD, 0)
    state = run.state
    state.head[:] = 1e4 * np.random.default_rng(0).normal(size=state.head.shape)
    out = np.empty(len(METRICS))
    measure(WORLD, state, np.log([math.comb(3, c) for c in range(4)]), 8, run.batch, out)
    got = dict(zip(METRICS, out, strict=True))
    assert np.isfinite(out[:16]).all()
    assert got["train_entropy"] < 1e-6
    assert 0 <= got["train_pass@1"] <= got["train_pass@100"] <= 1
