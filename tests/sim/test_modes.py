"""Count mode, verifier noise, dynamic sampling, the linear policy: what each must leave unchanged."""

import numpy as np
import pytest

from fade_sim import config
from fade_sim.advantage import controller, make
from fade_sim.config import Contender, Train, World
from fade_sim.sim import kernels, layout, make_world, simulate
from fade_sim.sim.expected import expected_gradient, initial_policy
from fade_sim.sim.run import _Replica

SMALL = World(train_prompts=4, test_prompts=1)
METHOD = make("power_asym", alpha=2.0, delta=0.5)


def first_steps(train: Train, world, n: int):
    """Head after one step, for n different batches from the same start: (n, V, d), and the replica."""
    run = _Replica(train, Contender("x", METHOD, controller.init()), world, 0)
    heads = np.empty((n, *run.state.head.shape))
    for i in range(n):
        run.state.head[:] = 0.0
        kernels.train(world, run.dyn, run.weights, run.state, run.log_binomial, i, i + 1, run.batch, layout.WHOLE)
        heads[i] = run.state.head
    return heads, run


@pytest.mark.parametrize("world", [
    make_world(SMALL, 0), make_world(World(train_prompts=4, test_prompts=1, policy="linear"), 0),
    make_world(World(train_prompts=4, test_prompts=1, false_negative=0.3, false_positive=0.1), 0),
], ids=["bilinear", "linear", "noisy"])
@pytest.mark.parametrize("mode", ["sampled", "count"])
def test_a_sampled_step_has_the_exact_expectation(mode, world):
    """20 000 batches against expected_gradient: the rms z score of all cells is 1; a 5% error in a weight gives > 2."""
    train = Train(mode=mode, lr=1.0, lr_table=0.0, prompts=8, group_size=4)
    heads, run = first_steps(train, world, 20_000)
    error = heads.std(axis=0) / np.sqrt(len(heads))
    exact = expected_gradient(world, run.state.table, run.dyn)
    live = error > 1e-12
    z = ((heads.mean(axis=0) - exact)[live] / error[live])
    assert np.sqrt((z**2).mean()) < 1.35
    assert np.linalg.norm(exact) > 20 * np.linalg.norm(error)


def test_count_mode_has_less_variance():
    """It takes the conditional mean over arms given c: same mean (above), variance strictly below."""
    world = make_world(SMALL, 0)
    train = dict(lr=1.0, lr_table=0.0, prompts=8, group_size=4)
    sampled, _ = first_steps(Train(mode="sampled", **train), world, 4000)
    count, _ = first_steps(Train(mode="count", **train), world, 4000)
    assert count.var(axis=0).sum() < 0.8 * sampled.var(axis=0).sum()


def test_count_mode_draws_binomials():
    """Chi-square of the success counts of one prompt against Bin(8, p0), 9 cells."""
    from math import comb

    world = make_world(World(train_prompts=1, test_prompts=1, solve_mean=0.0, solve_sd=0.0), 2)
    run = _Replica(Train(mode="count", group_size=8, prompts=16, lr=0.0, lr_table=1e-300),
                   Contender("x", METHOD, controller.init()), world, 0)
    seen = np.zeros(9)
    for step in range(1000):
        kernels.sample(world, run.dyn, run.state, run.log_binomial, step, run.batch)
        seen += np.bincount(run.batch.successes, minlength=9)
    p = initial_policy(world)[2][0]
    wanted = 16_000 * np.array([comb(8, c) * p**c * (1 - p) ** (8 - c) for c in range(9)])
    assert p == pytest.approx(0.5)
    assert ((seen - wanted) ** 2 / wanted).sum() < 31.8  # 8 degrees of freedom, 99.99% point


def test_noise_moves_the_reward_not_the_success():
    """False negatives .3, false positives .1: phat sees p (1-.3) + (1-p) .1, the recorded solve rate does not."""
    world = {"train_prompts": 64, "test_prompts": 8, "solve_mean": 0.0, "solve_sd": 0.0,
             "false_negative": 0.3, "false_positive": 0.1}
    raw = {"train": {"steps": 200, "seeds": 1, "record": 200, "lr": 1e-12, "lr_table": 0, "group_size": 64},
           "world": world, "controller": {"rate": 0.02}}
    cfg = config.resolve(raw, {}, "x")
    trace = simulate(cfg.regimes[0], cfg.contenders)
    # p = .5: .5 * .7 + .5 * .1 = .4. phat forgets .5 to .5 * .98^200 = .018; 16*64 draws a step.
    assert trace.last("phat")[0, 0] == pytest.approx(0.4 + 0.1 * 0.98**200, abs=0.01)
    assert trace.last("train_pass@1")[0, 0] == pytest.approx(0.5, abs=1e-6)


def test_dynamic_sampling_costs_what_it_must_and_does_not_bias_phat():
    """p = .2 for every prompt, G = 4: a group is mixed with probability 1 - .2^4 - .8^4 = .5888."""
    raw = {"train": {"steps": 400, "seeds": 2, "record": 400, "lr": 1e-12, "lr_table": 0, "group_size": 4,
                     "dynamic_sampling": True, "max_rounds": 50},
           "world": {"solve_mean": float(np.log(0.25)), "solve_sd": 0.0}, "method": {"name": "dapo"}}
    cfg = config.resolve(raw, {}, "x")
    trace = simulate(cfg.regimes[0], cfg.contenders)
    # 6400 groups used a seed: cost 1/.5888 = 1.698, standard error sqrt(1-.5888)/.5888/sqrt(6400) = .0136
    np.testing.assert_allclose(trace.last("groups_drawn"), 1 / 0.5888, atol=0.05)
    # phat (rate .02, standard error about .01) stays at .2; a filter would show
    # E[c/4 | mixed] = .2 (1-.2^3)/.5888 = .337
    np.testing.assert_allclose(trace.last("phat"), 0.2, atol=0.03)
    np.testing.assert_allclose(trace.last("phat_kept"), 0.2 * (1 - 0.2**3) / 0.5888, atol=0.03)


def test_dynamic_sampling_gives_up_and_goes_on():
    """ADV-23: no prompt can be mixed (p = 1e-4, G = 2): 3 rounds, no update, no NaN, phat and the step move."""
    world = make_world(World(train_prompts=4, test_prompts=1, solve_mean=-50.0, solve_sd=0.0, solve_min=1e-4), 0)
    run = _Replica(Train(group_size=2, prompts=3, dynamic_sampling=True, max_rounds=3, lr=10.0),
                   Contender("x", make("dr_grpo"), controller.init()), world, 0)
    run.advance(1, lambda n: None)
    assert run.state.running[layout.DRAWN] == 9 and run.state.running[layout.STEP] == 1
    assert run.state.running[layout.PHAT] == pytest.approx(0.49)  # .98 * .5
    assert not run.state.head.any() and (run.state.theta == world.bias[:4]).all()


def test_linear_policy_generalises_through_shared_arms():
    """Held-out prompts improve although only training prompts are trained, and the head is (K, d)."""
    raw = {"train": {"steps": 300, "seeds": 4, "record": 300, "lr": 20.0, "lr_table": 0},
           "world": {"policy": "linear"}}
    cfg = config.resolve(raw, {}, "x")
    trace = simulate(cfg.regimes[0], cfg.contenders)
    gain = trace.values["test_pass@1"][0, :, -1] - trace.values["test_pass@1"][0, :, 0]
    assert gain.min() > 0.05
    # theory at the start is the same as in the bilinear world: p0 is exact
    world = make_world(cfg.regimes[0].world, 0)
    assert world.hidden.shape[1] == 1 and initial_policy(world)[2].min() >= 2e-3 * (1 - 1e-9)


def test_rules_of_the_batch_train_and_equal_their_table():
    """bnpo through the split step: the table used last is weight_table of the batch drawn last."""
    from fade_sim.advantage import BatchStats, weight_table

    world = make_world(World(train_prompts=32, test_prompts=4), 0)
    run = _Replica(Train(lr=10.0), Contender("x", make("bnpo"), controller.init()), world, 0)
    run.advance(5, lambda n: None)
    batch = BatchStats(run.batch.successes, np.full(16, 16))
    np.testing.assert_array_equal(run.state.table, weight_table(make("bnpo"), 16, batch=batch))
    assert np.abs(run.state.head).max() > 0.05
