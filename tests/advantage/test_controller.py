"""FADE's controller: worked numbers, conventions, ablations, checkpoints."""

import itertools
import json
import math

import numpy as np
import pytest

from fade_sim.advantage import controller


def run(state, batches):
    for solve_rate, entropy in batches:
        state = controller.update(state, solve_rate, entropy)
    return state


def test_ckp_02_fifty_updates_and_a_resume():
    # phat = .6 - .1 * .98^50 = .6 - .0364170 = .563583; alpha = 1.5 * .436417/.563583 = 1.161542
    half = run(controller.init(1.0), [(0.6, 1.0)] * 25)
    resumed = run(controller.from_dict(json.loads(json.dumps(controller.to_dict(half)))), [(0.6, 1.0)] * 25)
    straight = run(controller.init(1.0), [(0.6, 1.0)] * 50)
    assert resumed == straight
    assert straight.phat == pytest.approx(0.563583, abs=5e-7) and straight.step == 50
    assert controller.gains(straight)[0] == pytest.approx(1.161542, abs=5e-7)
    assert controller.gains(controller.init(1.0))[0] == 1.5  # what alpha would jump back to


def test_half_life_is_34_updates():
    # .98^34.3 = 1/2: after 34 updates with 1 the distance to 1 is .5 * .98^34 = .25157
    assert 1 - run(controller.init(1.0), [(1.0, 1.0)] * 34).phat == pytest.approx(0.5 * 0.98**34, rel=1e-12)
    assert math.log(0.5) / math.log(0.98) == pytest.approx(34.3, abs=0.05)


def test_printed_form_of_the_average():
    # weight .98 on the new value: .02 * .5 + .98 * .6 = .598, .02 * 1 + .98 * .5 = .51
    state = controller.update(controller.init(1.0, ema_literal=True), 0.6, 0.5)
    assert (state.phat, state.hhat) == pytest.approx((0.598, 0.51), rel=1e-14)
    assert controller.update(controller.init(1.0), 0.6, 0.5).phat == pytest.approx(0.502, rel=1e-14)


@pytest.mark.parametrize(("phat", "alpha"), [
    (0, 3), (0.2, 3), (1 / 3, 3), (0.4, 2.25), (0.5, 1.5), (0.55, 1.5 * 0.45 / 0.55), (0.6, 1), (0.9, 1), (1, 1),
])
def test_alpha_by_hand(phat, alpha):
    assert controller.alpha_of(phat, 3.0) == pytest.approx(alpha, rel=1e-15)


@pytest.mark.parametrize("alpha_max", [1.0, 1.5, 3.0, 10.0])
def test_alpha_is_the_clipped_formula_and_continuous(alpha_max):
    grid = np.linspace(1e-3, 1, 2001)
    right = np.clip(3 * (1 - grid) / (2 * grid), 1, alpha_max)
    np.testing.assert_allclose([controller.alpha_of(p, alpha_max) for p in grid], right, rtol=1e-14)
    for corner in (3 / (3 + 2 * alpha_max), 0.6):  # the pieces meet: no step across a corner
        around = [controller.alpha_of(corner * (1 + s), alpha_max) for s in (-1e-12, 0, 1e-12)]
        assert max(around) - min(around) < 1e-10


@pytest.mark.parametrize(("hhat", "target", "relative", "delta"), [
    (1.0, 1.0, False, 1), (1.5, 1.0, False, 1),  # at or above the target: capped at 1
    (0.8, 1.0, False, 0.8), (0.4, 0.5, False, 0.9), (0.4, 0.5, True, 0.8),  # 1 - .1; 1 - .1/.5
    (0.1, 1.0, False, 0.3), (0.0, 0.7, False, 0.3), (0.0, 0.6, False, 0.4), (0.0, 0.6, True, 0.3),
])
def test_delta_by_hand(hhat, target, relative, delta):
    assert controller.delta_of(hhat, target, 0.3, relative) == pytest.approx(delta, rel=1e-15)


def test_first_batch_sets_the_target():
    # H0 = 1.2, H* = .6, Hhat = 1.2; then .98 * 1.2 + .02 * .2 = 1.18
    state = controller.update(controller.init(), 0.5, 1.2)
    assert (state.h0, state.hhat) == (1.2, 1.2)
    state = controller.update(state, 0.5, 0.2)
    assert state.h0 == 1.2 and state.hhat == pytest.approx(1.18, rel=1e-15)
    # far below the target: Hhat -> .2, delta -> 1 + .2 - .6 = .6
    assert controller.gains(run(state, [(0.5, 0.2)] * 2000))[1] == pytest.approx(0.6, rel=1e-12)


def test_given_target_and_start():
    # Hhat = .98 * 1 + .02 * .5 = .99; H* = 1.3: delta = 1 + .99 - 1.3 = .69
    state = controller.update(controller.init(1.0, h_star=1.3), 0.5, 0.5)
    assert controller.gains(state)[1] == pytest.approx(0.69, rel=1e-14)
    # relative: 1 + (.99 - 1.3)/1.3
    state = controller.update(controller.init(1.0, h_star=1.3, relative=True), 0.5, 0.5)
    assert controller.gains(state)[1] == pytest.approx(1 - 0.31 / 1.3, rel=1e-14)


def test_order_batch_first_then_gains():
    """The gains that weigh a batch already contain it: alpha(.98 * .5 + .02 * 0 = .49), not alpha(.5)."""
    before = controller.init(1.0)
    after = controller.update(before, 0.0, 1.0)
    assert controller.gains(after)[0] == pytest.approx(1.5 * 0.51 / 0.49, rel=1e-14)
    assert controller.gains(before)[0] == 1.5 and before.step == 0  # a value: update did not touch it


@pytest.mark.parametrize(("ablation", "gains"), [
    ("none", (1.5 * 0.6 / 0.4, 0.8)), ("no_alpha", (1.0, 0.8)), ("no_delta", (2.25, 1.0)),
    ("entropy_only", (1 + 2 * 0.3, 0.8)),  # alpha falls with Hhat/H0 = .3/1
    ("log_schedule", (2.0, 0.65)),  # step 10 of 100: halfway in log; 3 - 2/2, 1 - .7/2
])
def test_ablations_by_hand(ablation, gains):
    # phat .4, Hhat .3, H0 1, H* .5: delta = 1 + .3 - .5
    state = controller.init(ablation=ablation, phat=0.4, h0=1.0, step=10, horizon=100)
    state = controller.from_dict({**controller.to_dict(state), "hhat": 0.3})
    assert controller.gains(state) == pytest.approx(gains, rel=1e-14)


def test_log_schedule_ends_at_the_horizon():
    state = controller.init(ablation="log_schedule", horizon=5)
    ends = [controller.gains(state)]
    for _ in range(9):
        state = controller.update(state, 0.5, 1.0)
        ends.append(controller.gains(state))
    assert ends[0] == ends[1] == (3.0, 1.0)  # log 1 = 0
    assert ends[5] == ends[9] == pytest.approx((1.0, 0.3), rel=1e-14)
    assert all(a > b for a, b in itertools.pairwise(ends[1:6]))


def test_gains_stay_in_range_over_every_input():
    for phat in (0.0, 1e-300, 0.3, 0.6, 1.0):
        for hhat in (0.0, 0.5, 100.0):
            for ablation in controller.ABLATIONS:
                for relative in (False, True):
                    state = controller.init(1.0, phat=phat, relative=relative, ablation=ablation)
                    alpha, delta = controller.gains(controller.update(state, phat, hhat))
                    assert 1 <= alpha <= 3 and 0.3 <= delta <= 1


def test_state_without_entropy():
    for ablation in ("none", "no_alpha", "entropy_only"):
        with pytest.raises(ValueError, match="no entropy yet: give init an h0 or call update first"):
            controller.gains(controller.init(ablation=ablation))
    assert controller.gains(controller.init(ablation="no_delta")) == (1.5, 1.0)
    with pytest.raises(ValueError, match=r"controller\.relative needs h_star"):
        controller.gains(controller.update(controller.init(relative=True), 0.5, 0.0))


def test_smoothed_scale():
    state = controller.update_scale(controller.init(1.0), None)
    assert state.scale is None  # no signal yet
    state = controller.update_scale(state, 2.0)
    assert state.scale == 2.0  # the first ratio sets it
    state = controller.update_scale(controller.update_scale(state, None), 4.0)
    assert state.scale == pytest.approx(2.1, rel=1e-15)  # .95 * 2 + .05 * 4


@pytest.mark.parametrize("settings", [
    {}, {"h0": 0.7}, {"h0": 1.0, "h_star": 0.4, "relative": True, "ema_literal": True, "rate": 0.1, "alpha_max": 2.0},
    {"ablation": "log_schedule", "horizon": 7},
])
def test_round_trip_continues_the_same_run(settings):
    rng = np.random.default_rng(0)
    batches = [(float(rng.random()), float(rng.random())) for _ in range(20)]
    state = controller.update_scale(run(controller.init(**settings), batches[:9]), 1.7)
    saved = json.loads(json.dumps(controller.to_dict(state)))
    assert set(saved) >= {"phat", "hhat", "h0", "h_star", "step", "scale"}
    assert controller.from_dict(saved) == state
    assert run(controller.from_dict(saved), batches[9:]) == run(state, batches[9:])


@pytest.mark.parametrize("number", [np.float32, np.float64, np.int64])
def test_numbers_of_any_library_become_plain(number):
    """A float32 solve rate would narrow the average to float32 and break the checkpoint's JSON."""
    state = controller.update(controller.init(1.0), number(1), number(2))
    assert type(state.phat) is float and type(state.hhat) is float
    assert state == controller.update(controller.init(1.0), 1.0, 2.0)
    json.dumps(controller.to_dict(controller.update(controller.init(), number(1), number(2))))


@pytest.mark.parametrize(("settings", "message"), [
    ({"rate": 0.0}, r"controller.rate is 0.0, expected in \(0, 1\]"), ({"rate": 1.1}, "controller.rate"),
    ({"rate": math.nan}, "controller.rate is nan"), ({"h_star": 0.0}, "controller.h_star is 0.0"),
    ({"h_star": math.nan}, "controller.h_star is nan"), ({"h_star": math.inf}, "controller.h_star is inf"),
    ({"delta_min": 0.0}, "controller.delta_min is 0.0"), ({"delta_min": 1.5}, "controller.delta_min is 1.5"),
    ({"alpha_max": 0.5}, "controller.alpha_max is 0.5, expected at least 1"), ({"alpha_max": math.inf}, "alpha_max"),
    ({"horizon": 0}, "controller.horizon is 0"), ({"phat": 1.5}, "controller.phat is 1.5"),
    ({"h0": -1.0}, "controller.h0 is -1.0|controller.hhat is -1.0"),
    ({"h0": math.nan}, "is nan, expected a non-negative"),
    ({"ablation": "no_alfa"}, "unknown controller.ablation 'no_alfa'; did you mean 'no_alpha'"),
    ({"rat": 0.1}, "unknown controller setting 'rat'; did you mean 'rate'"),
])
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        controller.init(**settings)


@pytest.mark.parametrize(("values", "message"), [
    ({"pht": 0.5}, "unknown controller state 'pht'; did you mean 'phat'"),
    ({"hhat": math.nan}, "controller.hhat is nan"),
    ({"hhat": -0.1}, "controller.hhat is -0.1"), ({"step": -1}, "controller.step is -1"),
    ({"scale": math.nan}, "controller.scale is nan"), ({"scale": -2.0}, "controller.scale is -2.0"),
])
def test_damaged_checkpoint(values, message):
    with pytest.raises(ValueError, match=message):
        controller.from_dict({**controller.to_dict(controller.init(1.0)), **values})


@pytest.mark.parametrize(("solve_rate", "entropy", "message"), [
    (1.1, 1.0, r"solve_rate is 1.1, expected a number in \[0, 1\]"), (-0.1, 1.0, "solve_rate is -0.1"),
    (math.nan, 1.0, "solve_rate is nan"), (None, 1.0, "solve_rate is None"), ("0.5", 1.0, "solve_rate is '0.5'"),
    (0.5, -0.1, "entropy is -0.1, expected a non-negative number of nats"), (0.5, math.nan, "entropy is nan"),
    (0.5, math.inf, "entropy is inf"), (0.5, None, "entropy is None"),
])
def test_bad_batch_statistics(solve_rate, entropy, message):
    state = controller.init(1.0)
    with pytest.raises(ValueError, match=message):
        controller.update(state, solve_rate, entropy)
