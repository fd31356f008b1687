"""The core of the adapters: one batch in, advantages, controller and metrics out."""

import json

import numpy as np
import pytest

from fade_sim.advantage import advantages, controller, make, resolve
from fade_sim.config import shipped
from fade_sim.errors import InputError
from llm.adapters.weights import Weights

METHODS = [name for name, path in shipped().items() if path.parent.name == "methods"]
# Three groups of four, ids in no order: successes 1, 4 and 0.
REWARDS = [1, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]
GROUPS = [9, 9, 9, 9, -2, -2, -2, -2, 5, 5, 5, 5]


def test_worked_numbers():
    """delta .5: the success of 1/4 weighs 3/4, its failures (1/4)/.5 = 1/2 each.

    m_S = mean over groups of (c/G) w_S = (1/4)(3/4)/3 = 1/16, m_F = (3/4)(1/2)/3 = 1/8.
    """
    done = Weights({"name": "asym_delta", "delta": 0.5}, 4).step(REWARDS, GROUPS)
    assert done.advantages.tolist() == [0.75, -0.5, -0.5, -0.5] + [0] * 8
    row = done.metrics
    assert (row["m_S"], row["m_F"], row["sign_ratio"]) == pytest.approx((1 / 16, 1 / 8, 0.5))
    assert row["mass_by_solve_rate/(0, 1/4]"] == 1 and row["mass_by_solve_rate/1"] == 0
    assert (row["all_fail"], row["all_pass"], row["mixed"]) == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert row["pass@1"] == pytest.approx((1 / 4 + 1 + 0) / 3)
    assert row["pass@2"] == pytest.approx((1 / 2 + 1 + 0) / 3)  # 1 - C(3,2)/C(4,2) = 1/2
    assert row["pass@4"] == pytest.approx(2 / 3)
    assert row["phat"] == pytest.approx(0.98 * 0.5 + 0.02 * 5 / 12) and "Hhat" not in row and "alpha" not in row


@pytest.mark.parametrize("order", [np.arange(12)[::-1], np.random.default_rng(3).permutation(12)])
def test_order_of_rows_is_of_no_account(order):
    """ADV-05: a group is its id, wherever its rollouts stand."""
    a, b = Weights("fade", 4), Weights("fade", 4)
    entropy, tokens = np.linspace(0.2, 1.3, 12), np.arange(12)
    one = a.step(REWARDS, GROUPS, entropy, tokens)
    two = b.step(np.array(REWARDS)[order], np.array(GROUPS)[order], entropy[order], tokens[order])
    assert two.advantages.tolist() == one.advantages[order].tolist()
    assert two.metrics == pytest.approx(one.metrics)
    assert a.controller.phat == b.controller.phat


def test_interleaved_prompts_are_not_mixed():
    """ADV-05's smallest input: prompts a b a b, rewards 1 1 0 1."""
    assert Weights("dr_grpo", 2).step([1, 1, 0, 1], [0, 1, 0, 1]).advantages.tolist() == [0.5, 0, -0.5, 0]


@pytest.mark.filterwarnings("ignore:.*not read here")  # two of the files set how groups are drawn
@pytest.mark.parametrize("name", METHODS)
def test_every_shipped_method_weighs_as_the_core_does(name):
    """The adapter adds nothing to a rule. Groups: hard, even, all-pass, all-fail, easy."""
    G = 4 if name == "table" else 8  # the shipped table has five rows
    weights = Weights(name, G)
    successes = [1, G // 2, G, 0, G - 1]
    reward = np.concatenate([[1] * c + [0] * (G - c) for c in successes])
    group = np.repeat(np.arange(5), G)
    done = weights.step(reward, group, 0.7)
    if not weights.adaptive:
        assert done.advantages.tolist() == advantages(reward, group, weights.method).tolist()
        return
    fade = advantages(reward, group, resolve(weights.method, *controller.gains(weights.controller)))
    base = advantages(reward, group, make("dr_grpo"))
    ratio = np.abs(fade).sum() / np.abs(base).sum()
    expected = {"none": fade, "unit": fade / ratio}.get(weights.method.rule.control, base * ratio)
    assert np.allclose(done.advantages, expected, rtol=1e-12, atol=0)


def test_alpha_and_delta_are_those_of_the_controller_after_this_batch():
    weights = Weights({"name": "fade", "controller": {"rate": 0.5, "h_star": 2.0}}, 4)
    done = weights.step(REWARDS, GROUPS, 1.5)
    # phat = .5 * .5 + .5 * 5/12 = .4583, alpha = 1.5 (1 - phat)/phat = 1.7727; delta = 1 + 1.5 - 2 = .5
    assert done.metrics["alpha"] == pytest.approx(1.5 * (1 - 11 / 24) / (11 / 24))
    assert done.metrics["delta"] == pytest.approx(0.5) and done.metrics["sign_ratio"] == pytest.approx(0.5)
    success, failure = done.advantages[0], done.advantages[1]
    assert success / -failure == pytest.approx(3 * 0.5)  # (1 - 1/4)/(1/4) = 3, failures over delta


def test_entropy_is_a_mean_over_tokens():
    """A rollout of 3 tokens counts three times, one without tokens not at all (even if its value is no number)."""
    weights = Weights("fade", 4)
    row = weights.step([1, 0, 0, 0], [0] * 4, [1.0, 2.0, np.nan, 4.0], [3, 1, 0, 2]).metrics
    assert row["entropy"] == pytest.approx((3 + 2 + 8) / 6) == weights.controller.hhat
    assert row["entropy_success"] == 1.0 and row["entropy_failure"] == pytest.approx(10 / 3)
    for bad in (dict(entropy=[np.nan, 1, 1, 1]), dict(entropy=-0.1), dict(entropy=[1.0, 1.0]), dict(),
                dict(entropy=[1] * 4, tokens=[0] * 4)):
        with pytest.raises(InputError, match="entropy"):
            weights.step([1, 0, 0, 0], [0] * 4, **bad)


def test_rules_that_read_no_entropy_need_none():
    assert not Weights("dr_grpo", 4).reads_entropy and Weights("fade", 4).reads_entropy
    schedule = Weights("fade_no_delta", 4)
    row = schedule.step(REWARDS, GROUPS).metrics
    assert not schedule.reads_entropy and row["delta"] == 1.0 and "Hhat" not in row and "entropy" not in row
    assert schedule.controller.hhat is None and schedule.controller.phat < 0.5


def test_balanced_rules():
    """m_S = m_F in every group, whatever the controller does."""
    for name in ("dr_grpo", "grpo", "power", "rloo", "fade_no_delta", "scale_only", "bnpo"):
        assert Weights(name, 8).balanced, name
    for name in ("fade", "fade_unit", "asym_delta", "reinforce", "nsr", "reinforce_pp", "maxrl", "fade_log_schedule"):
        assert not Weights(name, 8).balanced, name


def test_an_unjudged_rollout_leaves_its_group():
    """RWC-15: [?, 1, 0, 1] give [0, 1/3, -2/3, 1/3]; phat moves by 3 of 7."""
    weights = Weights("dr_grpo", 4)
    done = weights.step([np.nan, 1, 0, 1, 1, 0, 0, 0], [0] * 4 + [1] * 4)
    assert done.advantages.tolist() == pytest.approx([0, 1 / 3, -2 / 3, 1 / 3, 0.75, -0.25, -0.25, -0.25])
    assert done.metrics["unscored"] == 1 and weights.controller.phat == pytest.approx(0.49 + 0.02 * 3 / 7)
    assert done.metrics["m_S"] == pytest.approx(3 / 16)  # of the complete group
    with pytest.raises(InputError, match="no rollout of this batch could be judged"):
        weights.step([np.nan, np.nan], [0, 0])
    assert weights.controller.step == 1  # a refused batch does not move it


def test_a_run_that_goes_on(tmp_path):
    """Saved after two batches, the third is the same to the bit."""
    first, second = Weights("scale_ema", 4), Weights("scale_ema", 4)
    for entropy in (1.25, 1.1):
        first.step(REWARDS, GROUPS, entropy)
    first.save(tmp_path / "state.json")
    second.load(tmp_path / "state.json")
    assert second.controller == first.controller and second.controller.scale is not None
    one, two = (w.step(REWARDS[::-1], GROUPS[::-1], 0.9) for w in (first, second))
    assert one.metrics == two.metrics and one.advantages.tolist() == two.advantages.tolist()


def test_a_state_of_another_run_is_refused(tmp_path):
    path = tmp_path / "state.json"
    saved = Weights("fade", 4)
    saved.step(REWARDS, GROUPS, 1.0)
    saved.save(path)
    with pytest.raises(InputError, match="belongs to fade at group size 4, this run weighs by fade at 8"):
        Weights("fade", 8).load(path)
    with pytest.raises(InputError, match=r"belongs to fade .* alpha and delta would jump"):
        Weights("dr_grpo", 4).load(path)
    with pytest.raises(InputError, match=r"controller.rate was 0.02, this run has 0.1"):
        Weights({"name": "fade", "controller": {"rate": 0.1}}, 4).load(path)
    with pytest.raises(InputError, match="cannot be read"):
        saved.load(tmp_path / "none.json")
    for text in ("{}", "[]", '{"method": "fade", "group_size": 4, "controller": {"phat": 2}}', "{"):
        path.write_text(text)
        with pytest.raises(InputError, match=r"state.json: (is no state|the controller's state cannot be read)"):
            saved.load(path)
    assert saved.controller.step == 1
    json.dumps(saved.state_dict())


@pytest.mark.parametrize(("method", "message"), [
    ("fde", "did you mean 'fade'"), ({"name": "asym_delta", "delta": 0}, "delta is 0, expected a number above 0"),
    ({"name": "asym_delta", "dleta": 1}, "unknown .*'dleta'"), ({"delta": 1}, "name is missing"),
    ({"name": "fade", "controller": {"rat": 1}}, "unknown key 'rat'.*'rate'"), ("ablations", "expected one"),
    ("power_asym(alpha=0.5)", "alpha is 0.5"), (make("power_unbiased", alpha=4), "alpha is 4, expected at most"),
    ({"name": "table", "weights": [[0, 0], [1, -1]]}, "2 rows are for group size 1"),
])
def test_bad_methods(method, message):
    with pytest.raises(InputError, match=message) as error:
        Weights(method, 4)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("rewards", "groups", "message"), [
    ([1, 0.5], [0, 0], r"reward 1 is 0.5, expected 0, 1 or NaN \(1 such rewards\)"),
    ([1, np.inf], [0, 0], "reward 1 is inf"), ([1, 0], [0, 0, 0], "3 group ids"), ([1, 0], [0.0, 0.0], "float64"),
    ([1, 0, 1, 0, 1], [3] * 5, "group 3 has 5 rollouts, expected at most 4"), ([], [], "expected numbers"),
    ([[1, 0]], [[0, 0]], "shape"), (["1"], [0], "expected numbers"),
])
def test_bad_batches(rewards, groups, message):
    weights = Weights("dr_grpo", 4)
    with pytest.raises(InputError, match=message):
        weights.step(rewards, groups)
    assert weights.controller == controller.init()


def test_labels_files_and_methods(tmp_path):
    """One rule, four ways to name it."""
    path = tmp_path / "mine.toml"
    path.write_text("[method]\nname = 'power_asym'\nalpha = 2\ndelta = 0.5\n")
    ways = ("power_asym(alpha=2, delta=.5)", path, make("power_asym", alpha=2, delta=0.5),
            {"name": "power_asym", "alpha": 2, "delta": 0.5})
    assert len({(Weights(way, 8).method, Weights(way, 8).label) for way in ways}) == 1


def test_sections_of_a_file_that_are_the_engines_business_are_said(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[method]\nname = 'rloo'\n[train]\nstaleness = 20\n[model]\nlr = 1\n")
    with pytest.warns(UserWarning, match=r"^mine.toml: \[train\], \[model\] not read here: the engine has its own"):
        assert Weights(path, 4).label == "rloo"
    path.write_text("[method]\nname = 'rloo'\n[train]\nstalness = 20\n")
    with pytest.warns(UserWarning), pytest.raises(InputError, match="unknown key 'stalness'"):
        Weights(path, 4)
