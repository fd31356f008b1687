"""What a whole run must do: determinism, the score identity in expectation, the stale funnel."""

import numpy as np
import pytest

from fade_sim import config
from fade_sim.advantage import make
from fade_sim.errors import InputError
from fade_sim.recordings import initial_solve_rates
from fade_sim.sim import make_world, simulate
from fade_sim.sim.run import match_factor, record_steps


def resolve(train, world=None, compare=("dr_grpo",)):
    rows = [dict(name=c) if isinstance(c, str) else c for c in compare]
    return config.resolve({"train": train, "world": world or {}, "compare": rows}, {}, "test")


def run(train, world=None, compare=("dr_grpo",), **kwargs):
    cfg = resolve(train, world, compare)
    return simulate(cfg.regimes[0], cfg.contenders, **kwargs)


SMALL = {"train_prompts": 24, "test_prompts": 8}
DELTAS = [{"name": "asym_delta", "delta": d} for d in (0.3, 1.0, 4.0)]


def test_threads_do_not_change_a_bit():
    train = {"steps": 60, "seeds": 3, "record": 20, "staleness": 5}
    one = run(train, SMALL, ("dr_grpo", "fade", "scale_ema"), threads=1)
    two = run(train, SMALL, ("dr_grpo", "fade", "scale_ema"), threads=2)
    for name in one.values:
        assert one.values[name].tobytes() == two.values[name].tobytes(), name


def test_a_seed_is_heard_and_a_rule_does_not_depend_on_its_company():
    train = {"steps": 40, "seeds": 2, "record": 40}
    both = run(train, SMALL, ("dr_grpo", "fade"))
    alone = run(train, SMALL, ("fade",))
    np.testing.assert_array_equal(both.last("train_pass@1")[1], alone.last("train_pass@1")[0])
    shifted = run({**train, "seed": 1, "seeds": 1}, SMALL, ("fade",))
    assert shifted.last("train_pass@1")[0, 0] == alone.last("train_pass@1")[0, 1]  # seed 1 is seed 1
    assert alone.last("train_pass@1")[0, 0] != alone.last("train_pass@1")[0, 1]


def test_recording_more_often_changes_nothing_else():
    rare = run({"steps": 50, "seeds": 1, "record": 50}, SMALL)
    often = run({"steps": 50, "seeds": 1, "record": 7}, SMALL)
    assert rare.last("test_entropy") == often.last("test_entropy")
    assert record_steps(50, 7).tolist() == [0, 7, 14, 21, 28, 35, 42, 49, 50]


# --- the score identity: E[update] = (m_S/p + m_F/q) grad p ------------------------------------------


def test_expected_mode_sign_axis_drops_out_when_the_slope_is_matched():
    """On-policy, exact, slope divided out per prompt: every rule is the same trajectory."""
    train = {"mode": "expected", "steps": 40, "seeds": 1, "record": 10, "match": "slope", "lr": 5.0}
    rules = (*DELTAS, {"name": "power", "alpha": 3.0}, "grpo", "reinforce", "nsr", {"name": "baseline", "b": 0.9})
    trace = run(train, SMALL, rules)
    for name in ("train_pass@1", "train_entropy", "rank1", "test_pass@10"):
        values = trace.values[name][:, 0, 1:]
        spread = np.abs(values - values[0]).max()
        assert spread < 1e-11, (name, spread)
    moved = np.ptp(trace.values["train_pass@1"][0, 0])
    assert moved > 0.2  # and it is a trajectory, not a standstill


def test_expected_mode_without_the_match_delta_is_a_slope():
    """The same three deltas differ once their slope q + p/delta is left in: the check above can fail."""
    train = {"mode": "expected", "steps": 40, "seeds": 1, "record": 40, "lr": 5.0}
    p1 = run(train, SMALL, DELTAS).last("train_pass@1")[:, 0]
    assert p1[0] > p1[1] + 0.01 > p1[2] + 0.02  # delta .3 has the largest slope


def test_expected_mode_stale_the_sign_comes_back():
    """With stale rollouts and no ratio the slope-free rules part again: the term is -(m_S - m_F) grad KL."""
    train = {"mode": "expected", "steps": 60, "seeds": 1, "record": 60, "match": "slope", "lr": 20.0,
             "staleness": 20}
    p1 = run(train, SMALL, DELTAS).last("rank1")[:, 0]
    assert p1[0] > p1[2] + 0.1


def test_expected_mode_is_the_mean_of_sampled_steps():
    """One step from the start: the mean over 4000 sampled batches approaches the exact gradient."""
    from fade_sim.sim.expected import expected_gradient
    from fade_sim.sim.reference import train_step
    from fade_sim.sim.run import _Replica

    cfg = resolve({"steps": 1, "seeds": 1, "lr": 1.0, "lr_table": 0.0, "prompts": 16, "group_size": 4},
                  {"train_prompts": 4, "test_prompts": 1}, ({"name": "power_asym", "alpha": 2.0, "delta": 0.5},))
    world = make_world(cfg.regimes[0].world, 0)
    replica = _Replica(cfg.regimes[0].train, cfg.contenders[0], world, 0)
    total, square, n = 0.0, 0.0, 1500
    for i in range(n):
        replica.state.head[:] = 0.0
        train_step(world, replica.dyn._replace(lag=0), replica.method, replica.ctrl, 1.0, replica.state, i)
        total = total + replica.state.head
        square = square + replica.state.head**2
    mean = total / n
    error = np.sqrt((square / n - mean**2) / n)
    exact = expected_gradient(world, replica.state.table, replica.dyn)
    z = (mean - exact) / error
    # 256 cells: the rms of z is 1 +- .044; a weight off by 5% would put it above 2.
    assert np.sqrt((z**2).mean()) < 1.3
    assert np.linalg.norm(exact) > 20 * np.linalg.norm(error) / 16


# --- claim B in the sampled dynamics --------------------------------------------------------------------


FOUR_RULES = [{"name": "asym_delta", "delta": d} for d in (0.3, 0.5, 1.0, 2.0)]  # delta 1 is dr_grpo


def final_rank1(**train):
    """(4 rules, 10 seeds) with rollouts 30 updates old."""
    return run({"steps": 600, "seeds": 10, "record": 600, "staleness": 30, **train}, None, FOUR_RULES).last("rank1")


def test_stale_rank1_energy_orders_with_delta():
    rank1 = final_rank1(lr=40.0)
    mean = rank1.mean(axis=1)
    assert mean[0] > mean[1] > mean[2] > mean[3]
    # Paired over seeds: delta .3 above dr_grpo above delta 2, each by more than 4 standard errors.
    for high, low in ((0, 2), (2, 3)):
        gap = rank1[high] - rank1[low]
        assert gap.mean() > 4 * gap.std(ddof=1) / np.sqrt(10)
    assert mean[0] > 0.93


def test_the_importance_ratio_removes_the_funnel():
    """Excess of delta .3 over dr_grpo: about .5 without the ratio, 0 with it (standard error about .02)."""
    without, with_ratio = final_rank1(lr=20.0), final_rank1(lr=20.0, correction="ratio")
    excess, left = without[0] - without[2], with_ratio[0] - with_ratio[2]
    assert excess.mean() > 0.3 and excess.min() > 0.1
    assert left.mean() < 0.1
    assert excess.mean() - left.mean() > 5 * (excess - left).std(ddof=1) / np.sqrt(10)


def test_on_policy_no_rule_has_a_funnel():
    """lr 40 without staleness: delta .3 within .05 of dr_grpo (standard error .01)."""
    rank1 = final_rank1(lr=40.0, staleness=0)
    assert np.abs(rank1.mean(axis=1) - rank1[2].mean()).max() < 0.05


# --- matching, worlds, real solve rates -------------------------------------------------------------------


def test_match_mass_by_hand():
    """asym_delta(.5) has m_S + m_F = 3 times dr_grpo's m_S, dr_grpo 2 times: factor 2/3."""
    cfg = resolve({"match": "mass"}, SMALL)
    world = make_world(cfg.regimes[0].world, 0)
    from fade_sim.sim.run import dynamics, initial_batch

    train = cfg.regimes[0].train
    args = world, dynamics(train, 0), initial_batch(world, train.group_size)
    assert match_factor(train, make("asym_delta", delta=0.5), *args) == pytest.approx(2 / 3)
    assert match_factor(train, make("dr_grpo"), *args) == 1.0


def test_recorded_masses_are_the_theory_at_the_start():
    """m_S at step 0 = mean over training prompts of the exact finite-G mass at p0 (nothing shared but the table)."""
    from fade_sim.theory import masses

    method = {"name": "power", "alpha": 2.0}
    trace = run({"steps": 1, "seeds": 1, "record": 1, "group_size": 8}, SMALL, (method,))
    world = make_world(resolve({}, SMALL).regimes[0].world, 0)
    weight = np.exp(world.bias)
    p0 = (weight * world.success).sum(axis=1) / weight.sum(axis=1)
    m_s, m_f = masses(make("power", alpha=2.0), 8, p0[: world.n_train])
    assert trace.values["m_S"][0, 0, 0] == pytest.approx(m_s.mean(), rel=1e-12)
    assert trace.values["m_F"][0, 0, 0] == pytest.approx(m_f.mean(), rel=1e-12)


def test_world_is_as_described():
    spec = resolve({}, {"name": "split_rare", "train_prompts": 400, "test_prompts": 100}).regimes[0].world
    world = make_world(spec, 5)
    failures = ~world.success
    np.testing.assert_allclose(np.linalg.norm(world.hidden, axis=-1)[failures], 1.0, rtol=1e-12)
    np.testing.assert_allclose(world.hidden[..., 0], np.sqrt(0.7), rtol=1e-12)  # common direction u1
    p0 = (np.exp(world.bias) * world.success).sum(1) / np.exp(world.bias).sum(1)
    assert p0.min() >= 1e-4 * (1 - 1e-9) and p0.max() <= 0.98 * (1 + 1e-9)
    per_mode = [[(world.mode[x] == m).sum() for m in range(4)] for x in range(500)]
    assert set(np.unique(per_mode)) == {0, 1, 2}
    assert (world.success == (world.mode >= 0)).all() and world.success.any(axis=1).all()
    # Hidden states of one skill in two prompts: cosine c + (1-c) rho_S = .7 + .3*.7 = .91 on average,
    # two unrelated arms c = .7. Successes of a prompt with one skill and two arms show it.
    twins = [np.flatnonzero(world.mode[x] == 0) for x in range(500)]
    cosines = [world.hidden[x, t[0]] @ world.hidden[x, t[1]] for x, t in enumerate(twins) if len(t) == 2]
    assert np.mean(cosines) == pytest.approx(0.91, abs=0.01)  # about 250 pairs, sd .04: error .003


def test_named_worlds_differ_in_difficulty():
    p0 = {name: run({"steps": 1, "seeds": 4, "record": 1}, {"name": name}).values["test_pass@1"][0, :, 0].mean()
          for name in ("default", "hard", "rare", "split_rare")}
    assert p0["default"] > 0.25 > p0["hard"] > 0.1 > max(p0["rare"], p0["split_rare"])


def test_real_solve_rates_become_the_initial_ones(tmp_path):
    """(c + 1/2)/(n + 1): 0 of 64 -> 1/130, 64 of 64 -> 129/130; a third held out, nothing lost."""
    rows = "".join(f"{i},{c},64\n" for i, c in enumerate([0, 64, 32, 16, 8, 63]))
    (tmp_path / "counts.csv").write_text("prompt_id,successes,attempts\n" + rows)
    rates = initial_solve_rates(tmp_path / "counts.csv")
    assert rates[0] == pytest.approx(1 / 130) and rates[1] == pytest.approx(129 / 130)
    world = make_world(resolve({}).regimes[0].world, 0, rates)
    weight = np.exp(world.bias)
    p0 = (weight * world.success).sum(axis=1) / weight.sum(axis=1)
    assert world.n_train == 4 and len(p0) == 6
    np.testing.assert_allclose(np.sort(p0), np.sort(rates), rtol=1e-12)


def test_overflow_is_an_error_not_a_hole():
    with pytest.raises(InputError, match=r"became non-finite by step .*lower train.lr"):
        run({"steps": 400, "seeds": 1, "record": 100, "lr": 1e300, "staleness": 5}, SMALL,
            ({"name": "asym_delta", "delta": 0.1},))


def test_worlds_kept_for_the_next_regime_change_nothing():
    """Three regimes, the last in another world: each as if run alone; only the last worlds are kept."""
    raw = {"train": {"steps": 20, "seeds": 2, "record": 20}, "world": {"train_prompts": 16, "test_prompts": 4},
           "method": {"name": "dr_grpo"},
           "regime": [{"name": "a"}, {"name": "b", "train": {"staleness": 5}}, {"name": "c", "world": {"common": 0.3}}]}
    cfg, worlds = config.resolve(raw, {}), {}
    for regime in cfg.regimes:
        together = simulate(regime, cfg.contenders, threads=1, worlds=worlds)
        alone = simulate(regime, cfg.contenders, threads=1)
        assert all(np.array_equal(together.values[k], alone.values[k], equal_nan=True) for k in alone.values)
    assert set(worlds) == {(cfg.regimes[2].world, seed) for seed in (0, 1)}
