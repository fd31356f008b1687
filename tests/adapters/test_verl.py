"""verl with rules of this project: its own loop, data and checkpoints; only what samples and learns is scripted."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest

from fade_sim.advantage import RULES, advantages, controller, make
from fade_sim.errors import InputError
from llm.adapters import hazards_verl
from llm.adapters.hazards_verl import ESTIMATOR
from llm.adapters.weights import Weights

pytest.importorskip("verl", reason="verl is not installed: pip install -e '.[verl]' in an environment of its own")
import torch

pytestmark = pytest.mark.filterwarnings("ignore")
tiny, adapter = import_module("tiny_verl"), import_module("llm.adapters.verl")
G, composed, overrides, PREFIX, STATE = tiny.G, adapter.composed, tiny.overrides, adapter.PREFIX, adapter.STATE
ROOT = Path(__file__).parent.parent.parent
FADE = ("+algorithm.fade.controller.rate=.3", "+algorithm.fade.controller.h_star=1.1")  # moves fast, delta below 1


@pytest.fixture(scope="module")
def cluster():
    tiny.start()
    yield
    tiny.stop()


def fresh(code: str, path: str = str(ROOT), **variables):
    """Standard output of a new interpreter, and its errors."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd="/",
                          env={**os.environ, "PYTHONPATH": path, **variables})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, done.stderr


# --- found by verl -----------------------------------------------------------------------------------------


def installed():
    if not any(point.value == "llm.adapters.verl_plugin" for point in entry_points(group="verl.plugins")):
        pytest.skip("verl finds installed packages only: pip install --no-deps -e .")


def test_import_of_verl_registers_every_rule_and_trainer():
    installed()
    out, _ = fresh("import verl, json; from verl.trainer.ppo import core_algos as c; from verl.trainer.ppo.v1 import "
                   "trainer_base as t; print(json.dumps([list(c.ADV_ESTIMATOR_REGISTRY), list(t.TRAINER_REGISTRY)]))")
    estimators, trainers = json.loads(out.splitlines()[-1])
    assert {f"{ESTIMATOR}{rule}" for rule in RULES} <= set(estimators)
    assert [f"{ESTIMATOR}{mode}" for mode in ("sync", "colocate_async", "separate_async")] == trainers[-3:]


def test_a_failure_of_the_plugin_is_said_aloud(tmp_path):
    """verl itself only writes it to a debug log, and later knows no such estimator."""
    installed()
    (tmp_path / "fade_sim.py").write_text("raise ImportError('broken')")
    _, said = fresh("import verl", f"{tmp_path}:{ROOT}")
    assert "the rules of fade_sim are not registered with verl: ImportError: broken" in said


def test_another_version_of_verl_is_refused(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.10.0")
    monkeypatch.delitem(sys.modules, "llm.adapters.verl")
    with pytest.raises(ImportError, match=r"overrides methods of verl 0\.9\.1, found 0\.10\.0; pip install verl==0"):
        import_module("llm.adapters.verl")


def test_the_core_needs_neither_verl_nor_a_model_library():
    heavy = ("verl", "ray", "transformers", "hydra", "numba")
    out, _ = fresh(f"import sys, llm.adapters.hazards_verl; print([m for m in {heavy!r} if m in sys.modules])")
    assert out.strip() == "[]"


# --- advantages --------------------------------------------------------------------------------------------

# Three prompts of four rollouts, interleaved: successes 1, 4, 0.
REWARDS = np.array([1, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0], dtype=float)
PROMPTS = np.array(["p1", "p2", "p3"] * 4, dtype=object)
LENGTHS = np.arange(12) % 5 + 1


def proto(rewards=REWARDS, uid=PROMPTS, dtype=torch.float64):
    from verl import DataProto

    mask = (torch.arange(6) < torch.as_tensor(LENGTHS[: len(rewards)])[:, None]).long()
    scores = torch.zeros(mask.shape, dtype=dtype)
    scores[torch.arange(len(rewards)), mask.sum(1) - 1] = torch.as_tensor(rewards, dtype=dtype)
    return DataProto.from_dict({"token_level_rewards": scores, "response_mask": mask}, {"uid": uid})


def computed(rule, data, **section):
    """verl's compute_advantage with its own composed config."""
    from verl.trainer.ppo.ray_trainer import compute_advantage

    more = [f"+algorithm.fade.{key}={value}" for key, value in section.items()]
    mode = ["trainer.v1.trainer_mode=fade_sim/sync", "algorithm.filter_groups.enable=" + str(RULES[rule].mixed_only)]
    config, _, _ = composed([*overrides(rule, "sync", *more), *mode])
    return compute_advantage(data, f"{ESTIMATOR}{rule}", num_repeat=4, config=config.algorithm).batch


def test_worked_numbers_through_verl():
    """delta .5, one success of four: 3/4, and -(1/4)/.5 for each failure; on response tokens alone."""
    out = computed("asym_delta", proto(), delta=0.5)["advantages"]
    mask = proto().batch["response_mask"]
    first = (PROMPTS == "p1").nonzero()[0]
    assert out[first].tolist() == [[w * m for m in row] for w, row in
                                   zip([0.75, -0.5, -0.5, -0.5], mask[first].tolist(), strict=True)]
    assert not out[PROMPTS != "p1"].any()


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if not rule.adaptive])
def test_every_static_rule_equals_the_core_to_the_bit(rule):
    params = {"k": 2} if "k" in RULES[rule].params and RULES[rule].params["k"].integer else {}
    if rule == "table":
        params = {"weights": [[0, 0], [2, -1], [1, -1], [1, -2], [0.5, 0]]}
    out, method = computed(rule, proto(), **params), make(rule, **params)
    each = advantages(REWARDS, np.unique(PROMPTS.astype(str), return_inverse=True)[1], method)
    want = torch.from_numpy(each)[:, None] * proto().batch["response_mask"]
    assert torch.equal(out["advantages"], want) and torch.equal(out["returns"], want)
    assert rule in ("wapo", "pass_at_k_tang") or want.any()


def test_float32_is_rounded_once():
    out = computed("power", proto(dtype=torch.float32), alpha=3)["advantages"]
    each = advantages(REWARDS, np.unique(PROMPTS.astype(str), return_inverse=True)[1], make("power", alpha=3))
    assert out.dtype == torch.float32 and torch.equal(out[:, 0], torch.from_numpy(each.astype(np.float32)))


def test_dr_grpo_is_verl_without_the_division_by_the_std():
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    data = proto().batch
    theirs, _ = compute_grpo_outcome_advantage(data["token_level_rewards"], data["response_mask"], PROMPTS,
                                               norm_adv_by_std_in_grpo=False)
    torch.testing.assert_close(computed("dr_grpo", proto())["advantages"], theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("rule", "rewards", "message"), [
    ("fade", REWARDS, "has a controller, which verl's own trainers do not move: use trainer.v1.trainer_mode=fade_sim"),
    ("dr_grpo", REWARDS * 0.5, r"verl: reward 0 is 0.5, expected 0, 1 or NaN \(5 such rewards\); compute_score has to"),
])
def test_an_estimator_under_a_trainer_of_verl_refuses(rule, rewards, message):
    with pytest.raises(InputError, match=message):
        computed(rule, proto(rewards))


def test_rows_that_fill_a_batch_are_no_rollouts():
    """lite_ppo divides by the std of the batch: three rows of reward 0 and an empty mask must not change it."""
    from verl import DataProto

    pad = DataProto.from_dict({"token_level_rewards": torch.zeros(3, 6, dtype=torch.float64),
                               "response_mask": torch.zeros(3, 6, dtype=torch.long)},
                              {"uid": np.array(["pad0"] * 3, dtype=object)})
    out = computed("lite_ppo", DataProto.concat([proto(), pad]))["advantages"]
    assert torch.equal(out[:12], computed("lite_ppo", proto())["advantages"]) and not out[12:].any()


# --- the trainer -------------------------------------------------------------------------------------------


def scripted(prompts, step: int, alpha: float, delta: float) -> np.ndarray:
    """Advantages (P, G) of a step of `tiny_verl.Sampler`, from the equation."""
    right = [(j + 2 * step) % (G + 1) for j in prompts]
    r = np.array([[float(session < c) for session in range(G)] for c in right])
    d = r - r.mean(axis=1, keepdims=True)
    return (1 - r.mean(axis=1, keepdims=True)) ** (alpha - 1) * np.where(d > 0, d, d / delta)


def by_prompt(learned: dict) -> list[list[float]]:
    """First-token advantages of the sessions of each prompt, in the order of the sessions."""
    rows: dict = {}
    for key, values in learned.items():
        if not key.startswith("pad"):
            uid, session, output = key.rsplit("_", 2)
            rows.setdefault(uid, {})[int(session), int(output)] = values[0]
    return [[value for _, value in sorted(row.items())] for row in rows.values()]


def test_fade_through_the_loop_of_verl(tmp_path, cluster):
    """Five steps: controller by its equations from solve rates and token entropies, then the rule at its gains."""
    trainer, rows = tiny.train(tmp_path, "fade", *FADE, steps=5)
    phat, hhat, deltas = 0.5, None, []
    for step in range(1, 6):
        row, learned = rows[step], trainer.actor_rollout_wg.learned[step - 1]
        prompts = trainer.agent_loop_manager.asked[step - 1]
        right = [(j + 2 * step) % (G + 1) for j in prompts]
        # ids 2, 3, .. of the response are measured one token before: prompt's last id 13, then 2, 3, ..
        size = [[1 + s + (0 if s < c else 2) for s in range(G)] for c in right]
        total = sum(13 + sum(range(2, 1 + n)) for group in size for n in group) / 8
        entropy = total / sum(map(sum, size))
        phat = 0.7 * phat + 0.3 * sum(right) / (3 * G)
        hhat = entropy if hhat is None else hhat
        hhat = 0.7 * hhat + 0.3 * entropy
        alpha = min(max(1.5 * (1 - phat) / phat, 1), 3)
        delta = min(max(1 + hhat - 1.1, 0.3), 1)
        deltas.append(delta)
        got = {name: row[f"{PREFIX}{name}"] for name in ("solve_rate", "entropy", "phat", "Hhat", "alpha", "delta")}
        assert got == pytest.approx({"solve_rate": sum(right) / (3 * G), "entropy": entropy, "phat": phat,
                                     "Hhat": hhat, "alpha": alpha, "delta": delta}, rel=1e-9)
        want = scripted(prompts, step, alpha, delta)
        np.testing.assert_allclose(by_prompt(learned), want, rtol=1e-6, atol=1e-7)  # float32 in verl
        m_S, m_F = np.maximum(want, 0).mean(), np.maximum(-want, 0).mean()
        assert (row[f"{PREFIX}m_S"], row[f"{PREFIX}m_F"]) == pytest.approx((m_S, m_F), rel=1e-9)
        assert row[f"{PREFIX}sign_ratio"] == pytest.approx(delta)
        assert sum(value for name, value in row.items() if "mass_by_solve_rate" in name) == pytest.approx(1)
    assert len(set(deltas)) == 5 and max(deltas) < 1  # the schedule moved
    assert adapter._WEIGHED.get() is None  # nothing is left for the next caller of an estimator


def test_entropy_is_a_mean_over_tokens_whatever_the_loss_divides_by(tmp_path, cluster):
    """verl's actor/entropy is aggregated as the loss is: here a sum over tokens, which would move delta by far."""
    _, rows = tiny.train(tmp_path, "fade", *FADE, steps=1)
    assert rows[1]["actor/entropy"] > 2 * rows[1][f"{PREFIX}entropy"]
    _, mean = tiny.train(tmp_path / "b", "fade", *FADE, "actor_rollout_ref.actor.loss_agg_mode=token-mean", steps=1)
    assert mean[1]["actor/entropy"] == pytest.approx(mean[1][f"{PREFIX}entropy"], rel=1e-6)
    assert mean[1][f"{PREFIX}entropy"] == rows[1][f"{PREFIX}entropy"]


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_a_run_that_goes_on_ends_the_same(tmp_path, cluster, mode):
    """Six steps, or three and three: controller, log and advantages.

    To 1e-12: verl names prompts at random, so sums are over rows in another order.
    """
    near = partial(pytest.approx, rel=1e-12, abs=1e-15)
    more = [*FADE, "trainer.save_freq=3"]
    if mode == "separate_async":
        more += ["trainer.v1.separate_async.parameter_sync_step=1", "actor_rollout_ref.rollout.nnodes=1",
                 "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl", "actor_rollout_ref.hybrid_engine=False"]
    if mode != "sync":
        more += [f"trainer.v1.{mode}.num_warmup_batches=0"]
    whole, rows = tiny.train(tmp_path / "whole", "fade", *more, mode=mode, steps=6)
    tiny.train(tmp_path / "cut", "fade", *more, mode=mode, steps=3)
    state = json.loads((tmp_path / "cut/checkpoints/global_step_3" / STATE).read_text())
    assert state["controller"]["step"] == 3 and state["controller"]["phat"] == near(rows[3][f"{PREFIX}phat"])
    second, after = tiny.train(tmp_path / "cut", "fade", *more, mode=mode, steps=6)
    assert type(whole.replay_buffer).__name__ == f"ReplayBuffer{'' if mode == 'sync' else 'Async'}"  # verl's own choice
    assert sorted(after) == [4, 5, 6]
    for step in after:
        mine = {k: v for k, v in after[step].items() if k.startswith(PREFIX)}
        assert mine == near({k: v for k, v in rows[step].items() if k.startswith(PREFIX)}) and len(mine) > 15
    for mine, theirs in zip(second.actor_rollout_wg.learned, whole.actor_rollout_wg.learned[3:], strict=True):
        assert np.array(sorted(by_prompt(mine))) == near(np.array(sorted(by_prompt(theirs))))
    ends = [trainer.weights.controller for trainer in (second, whole)]
    assert [(c.step, near(c.phat), near(c.hhat), near(c.h0)) for c in ends[:1]] == [
        (6, c.phat, c.hhat, c.h0) for c in ends[1:]]


def test_a_checkpoint_without_the_state_is_refused(tmp_path, cluster):
    more = [*FADE, "trainer.save_freq=1"]
    tiny.train(tmp_path, "fade", *more, steps=1)
    with pytest.raises(InputError, match=r"controller\.h_star was 1\.1, this run has None"):
        tiny.train(tmp_path, "fade", more[0], steps=2)
    with pytest.raises(InputError, match=r"belongs to fade at group size 4, this run weighs by fade_unit"):
        tiny.train(tmp_path, "fade_unit", *more, steps=2)
    (tmp_path / "checkpoints/global_step_1" / STATE).unlink()
    with pytest.raises(InputError, match=r"state cannot be read .* alpha and delta jump"):
        tiny.train(tmp_path, "fade", *more, steps=2)
    _, rows = tiny.train(tmp_path, "dr_grpo", steps=2)  # a static rule has nothing to lose
    assert sorted(rows) == [2]


def test_a_failed_session_and_one_without_a_verdict_leave_their_group(tmp_path, cluster):
    """verl fills the batch with rows of its own: they are in no group, no solve rate and no entropy.

    Every prompt loses session 0 and cannot judge session 1: two rollouts are left of four.
    """
    every = range(6)
    trainer, rows = tiny.train(tmp_path, "fade", *FADE, steps=2, lost={(j, 0) for j in every},
                               unjudged={(j, 1) for j in every})
    for step in (1, 2):
        learned, prompts = trainer.actor_rollout_wg.learned[step - 1], trainer.agent_loop_manager.asked[step - 1]
        right = [max((j + 2 * step) % (G + 1) - 2, 0) for j in prompts]  # of sessions 2 and 3
        assert sum(key.startswith("pad") for key in learned) == 3  # 9 rows, filled up to 12
        assert not any(any(values) for key, values in learned.items() if key.startswith("pad"))
        row = rows[step]
        assert row[f"{PREFIX}solve_rate"] == pytest.approx(sum(right) / 6) and row[f"{PREFIX}unscored"] == 3
        alpha, delta = row[f"{PREFIX}alpha"], row[f"{PREFIX}delta"]
        for c, (unjudged, *judged) in zip(right, by_prompt(learned), strict=True):
            x = c / 2
            want = [(1 - x) ** (alpha - 1) * (r - x if r > x else (r - x) / delta) for r in [1.0] * c + [0.0] * (2 - c)]
            assert unjudged == 0 and judged == pytest.approx(want, rel=1e-6)


def test_a_session_with_two_outputs_is_one_rollout(tmp_path, cluster):
    """Both outputs carry its weight; the group has four rollouts, not eight."""
    one, row = tiny.train(tmp_path / "1", "asym_delta", "+algorithm.fade.delta=.5", steps=1)
    two, rows = tiny.train(tmp_path / "2", "asym_delta", "+algorithm.fade.delta=.5", steps=1, outputs=2)
    want = by_prompt(one.actor_rollout_wg.learned[0])
    got = by_prompt(two.actor_rollout_wg.learned[0])
    assert got == [[w for w in group for _ in range(2)] for group in want] and np.ptp(want) > 0.5
    for name in ("solve_rate", "m_S", "m_F", "pass@2"):
        assert rows[1][f"{PREFIX}{name}"] == row[1][f"{PREFIX}{name}"]


def test_pass_at_k_of_validation_is_unbiased(tmp_path, cluster):
    """Six prompts with 0, 1, 2, 0, 1, 2 of 8 right. verl's best@8 draws with replacement: 1 - (7/8)^8 = .656 for 1.

    pass@4 = (0 + (1 - C(7,4)/C(8,4)) + (1 - C(6,4)/C(8,4)))/3 = (0 + 1/2 + 11/14)/3; pass@8 = 2/3.
    """
    _, rows = tiny.train(tmp_path, "dr_grpo", "trainer.test_freq=1", "actor_rollout_ref.rollout.val_kwargs.n=8",
                         "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
                         "actor_rollout_ref.rollout.val_kwargs.temperature=1", steps=1)
    row = rows[1]
    got = [row[f"val-core/sums/pass@{k}"] for k in (1, 4, 8)]
    assert got == pytest.approx([1 / 8, (1 / 2 + 11 / 14) / 3, 2 / 3])
    assert row["val-core/sums/pass@8/low"] < 2 / 3 < row["val-core/sums/pass@8/high"] <= 1
    assert row["val-core/sums/reward/best@8/mean"] < 0.55  # (0 + .656 + .900)/3 = .52, the truth is .667


def test_validation_scores_of_another_kind_have_no_pass_at_k():
    with pytest.warns(UserWarning, match="validation on sums: no pass@k, scores are not 0 or 1"):
        assert adapter._pass_rows("sums", np.array([0.5, 1.0]), np.array(["a", "a"])) == {}
    row = adapter._pass_rows("sums", np.array([1, 0, np.nan, 1]), np.array(["a", "a", "a", "b"]))
    assert row["pass@1"] == 3 / 4 and row["pass@2"] == 1 and set(row) == {
        "pass@1", "pass@1/low", "pass@1/high", "pass@2"}  # one prompt with two verdicts: no interval


# --- configs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ppo_trainer", "ppo_megatron_trainer"])
def test_a_clean_config_says_nothing(name):
    config, weights, said = composed(overrides("fade", "sync", *FADE), name)
    assert said == [] and config.algorithm.fade.controller.rate == 0.3
    assert weights.controller == controller.init(rate=0.3, h_star=1.1) and weights.group_size == G


@pytest.mark.parametrize(("more", "message"), [
    ("actor_rollout_ref.rollout.nn=8", "Could not override 'actor_rollout_ref.rollout.nn'"),
    ("algorithm.fade.delta=.5", r"Could not override 'algorithm.fade.delta'. To append .* use \+algorithm.fade.delta"),
    ("+algorithm.fade.delt=.5", "algorithm.fade: .*unknown key 'delt'; did you mean 'delta'"),
    ("+algorithm.fade.delta=0", "delta is 0, expected a number above 0"),
    ("+algorithm.fade.controller.rat=.1", "unknown key 'rat'; did you mean 'rate'"),
    ("+algorithm.fade.name=power", "the rule itself is algorithm.adv_estimator = fade_sim/<rule>"),
    ("+algorithm.fad.delta=.5", "unknown key algorithm.fad; did you mean 'fade'"),
    ("algorithm.adv_estimator=fade_sim/asym_delt", "unknown rule 'asym_delt'; did you mean 'asym_delta'"),
    ("actor_rollout_ref.actor.use_dynamic_bsz=False trainer.n_gpus_per_node=1", "set at least one of"),
    ("data.train_batch_size=5 trainer.n_gpus_per_node=8 actor_rollout_ref.actor.use_dynamic_bsz=False "
     "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1", r"real_train_batch_size \(20\) must be divisible"),
])
def test_a_wrong_key_or_value_is_one_line(more, message):
    with pytest.raises(InputError, match=message) as error:
        composed(overrides("asym_delta", "sync", *more.split()))
    assert "\n" not in str(error.value)


# --- hazards -----------------------------------------------------------------------------------------------

A, R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
REFUSED = [  # (rule, overrides, part of the message)
    ("fade", "algorithm.adv_estimator=reinforce_plus_plus", "m_S equal m_F: delta is erased; use .*reinforce_pp"),
    ("fade", "algorithm.adv_estimator=reinforce_plus_plus_baseline", "delta is erased; use .*reinforce_pp_baseline"),
    ("fade", "algorithm.adv_estimator=grpo", "norm_adv_by_std_in_grpo = False, .*alpha is not alpha; use .*/dr_grpo"),
    ("fade", "algorithm.adv_estimator=gae",
     "'gae': its advantages are those of a critic, whitened"),
    ("fade", "algorithm.adv_estimator=gdpo", "delta is erased"),
    ("fade", "algorithm.adv_estimator=opo", "'opo': it is not a rule of this project; use .*fade_sim/<rule>"),
    ("fade", "trainer.v1.trainer_mode=sync", "'sync': verl's own trainers do not move .*; use .* = fade_sim/sync"),
    ("fade", "trainer.v1.trainer_mode=separate_async", "use trainer.v1.trainer_mode = fade_sim/separate_async"),
    ("fade", "trainer.use_v1=False", "trainer.use_v1 = False: .*; use trainer.use_v1 = True"),
    ("dr_grpo", f"{R}.n=1", "rollout.n = 1: the baseline of this rule is the rest of the group.*; use .*n = 2"),
    ("reinforce", "algorithm.use_kl_in_reward=True", "use_kl_in_reward = True: .*neither .*; use .*False"),
    ("dr_grpo", "reward.reward_manager.name=dapo +reward.reward_kwargs.overlong_buffer_cfg.enable=True",
     "overlong penalty .*; use reward.reward_kwargs.overlong_buffer_cfg.enable = False"),
    ("fade", "algorithm.filter_groups.enable=True", "phat would see mixed groups only and drift to 1/2; use .* False"),
    ("scale_ema", "algorithm.filter_groups.enable=True", "drift to 1/2"),
    ("reinforce", "algorithm.filter_groups.enable=True", "learns from uniform groups.*; use .*enable = False"),
    ("lite_ppo", "algorithm.filter_groups.enable=True", "reads the whole batch"),
    ("dapo", "", "filter_groups.enable = False: this rule is defined on mixed groups.*; use .*enable = True"),
    ("fade", "trainer.v1.sampler.custom_sampler.path=x.py trainer.v1.sampler.custom_sampler.name=X",
     "what it leaves out, phat does not see; use .*path = null"),
    ("fade", "algorithm.rollout_correction.bypass_mode=True", "computes no entropy, .*; use .*bypass_mode = False"),
    ("asym_delta", f"{A}.loss_agg_mode=seq-mean-token-mean", "long failures weigh less.*use .*'seq-mean-token-sum'"),
    ("dr_grpo", f"{A}.loss_agg_mode=seq-mean-token-sum-norm", "loss_scale_factor = None: .*each micro-batch.*; use"),
    ("asym_delta", f"{A}.policy_loss.loss_mode=sapo", "'sapo': .*different gates: m_S/m_F .*; use .* = 'vanilla'"),
    ("maxrl", f"{A}.policy_loss.loss_mode=geo_mean", "'geo_mean': it divides every rollout by its own length"),
    ("dr_grpo", "distillation.enabled=True distillation.distillation_loss.use_task_rewards=False",
     "no weight enters it; use .*use_task_rewards = True"),
    ("dr_grpo", f"{A}.policy_loss.loss_mode=mine", "'mine': it is not known what this loss leaves"),
]
SAID = [
    ("dr_grpo", "algorithm.filter_groups.enable=True", "enable = True: .*those of the groups that are left"),
    ("fade", f"trainer.v1.trainer_mode=fade_sim/colocate_async {A}.clip_ratio_c=3", "dropped unseen by phat; .*'wait'"),
    ("fade", f"{A}.loss_agg_mode=token-mean", "token-mean': .*shrinks as answers grow; use .*'seq-mean-token-sum'"),
    ("dr_grpo", f"{A}.loss_agg_mode=seq-mean-token-mean", "own length"),
    ("dr_grpo", f"{A}.policy_loss.loss_mode=sapo", "sapo': .*though this rule weighs both alike"),
    ("fade", f"{A}.policy_loss.loss_mode=clip_cov", "a second force on it; use .* = 'vanilla'"),
    ("fade", f"{A}.policy_loss.loss_mode=kl_cov", "a second force on it"),
    ("fade", f"{A}.entropy_coeff=.01", "entropy_coeff = 0.01: .*controller steers"),
    ("fade", f"{A}.ppo_epochs=2 {A}.clip_ratio_high=.28", "clip_ratio_high = 0.28: .*a sign of its own; use"),
    ("fade", f"{A}.ppo_mini_batch_size=1", "clip_ratio_c = 3.0: .*failures alone.*; use .*data.train_batch_size"),
    ("fade", "distillation.enabled=True", "a teacher moves the entropy as well; use distillation.enabled = False"),
    ("fade", "trainer.critic_warmup=5", "critic_warmup = 5: before this step the controller moves"),
    ("fade", f"{A}.clip_ratio=.3", "clip_ratio = 0.3: verl does not read it"),
    ("fade", "algorithm.norm_adv_by_std_in_grpo=True", "only verl's own estimators read it; .*; use .* = False"),
    ("fade", "algorithm.rollout_correction.rollout_rs=token_k1 algorithm.rollout_correction.rollout_rs_threshold=2",
     "rollout_rs = 'token_k1': it drops rollouts"),
    ("fade", f"{R}.top_p=.9", "top_p = 0.9: .*entropy of the whole one; use .*top_p = 1"),
    ("fade", f"{R}.top_k=50", "top_k = 50"),
]


@pytest.mark.parametrize(("rule", "more", "message"), REFUSED)
def test_a_setting_that_undoes_the_rule_is_refused(rule, more, message):
    with pytest.raises(InputError, match=message) as error:
        composed(overrides(rule, "sync", *more.split()))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("rule", "more", "message"), SAID)
def test_a_setting_beside_the_rule_is_said(rule, more, message):
    _, _, said = composed(overrides(rule, "sync", *more.split()))
    assert any(re.search(message, line) for line in said), said
    assert not any("\n" in line for line in said)


@pytest.mark.slow
def test_the_command_of_verl_refuses_in_its_own_process(tmp_path):
    """The trainer is found in the process that Ray starts, and looks at the settings there."""
    installed()
    more = ["algorithm.filter_groups.enable=True", "ray_kwargs.ray_init.num_cpus=8", f"hydra.run.dir={tmp_path}",
            "transfer_queue.backend.SimpleStorage.num_data_storage_units=1"]
    done = subprocess.run([sys.executable, "-m", "verl.trainer.main_ppo", *overrides("fade", "sync", *more)],
                          capture_output=True, text=True, timeout=300, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 1
    assert "InputError: verl: algorithm.filter_groups.enable = True: phat would see mixed groups only" in done.stderr


def test_the_trainer_refuses_before_it_builds_anything():
    from verl.trainer.ppo.v1 import get_trainer_cls

    config, _, _ = composed(overrides("fade"))
    config.algorithm.filter_groups.enable = True
    with pytest.raises(InputError, match="drift to 1/2"):
        get_trainer_cls("fade_sim/sync")(config)


# --- what verl does, measured ------------------------------------------------------------------------------


def slopes(mode: str, agg: str = "seq-mean-token-sum", **config) -> tuple[float, float]:
    """Mean over the tokens of -d loss / d log-prob, over the advantage, of a short success and a long failure.

    Fresh rollouts, by verl's own loss: equal numbers mean that the weights arrive as they are.
    """
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import FSDPActorConfig, PolicyLossConfig

    actor = FSDPActorConfig(rollout_n=2, use_dynamic_bsz=True, loss_agg_mode=agg,
                            policy_loss=PolicyLossConfig(loss_mode=mode, dro_beta=0.1), **config)
    actor.global_batch_info.update(dp_size=1, batch_num_tokens=10, global_batch_size=2,
                                   loss_scale_factor=actor.loss_scale_factor)
    mask = torch.tensor([[1, 1, 0, 0, 0, 0, 0, 0], [1] * 8]).bool()
    old = torch.log(torch.linspace(0.2, 0.8, 16, dtype=torch.float64)).reshape(2, 8)
    now, advantage = old.clone().requires_grad_(), torch.tensor([[0.75], [-0.25]], dtype=torch.float64) * mask
    loss, _ = get_policy_loss_fn(mode)(old_log_prob=old, log_prob=now, advantages=advantage, response_mask=mask,
                                       loss_agg_mode=agg, config=actor, rollout_is_weights=None)
    loss.backward()
    slope = -now.grad / torch.where(mask, advantage, 1)
    return float(slope[0, :2].mean()), float(slope[1].mean())


def test_losses_that_are_let_through_keep_the_weights():
    for mode in hazards_verl._LOSSES:
        assert slopes(mode) == pytest.approx((0.5, 0.5), rel=1e-6), mode  # 1 / 2 rollouts
    for agg, size in (("token-sum", 1), ("token-mean", 1 / 10)):
        assert slopes("vanilla", agg) == pytest.approx((size, size))
    assert slopes("vanilla", "seq-mean-token-sum-norm", loss_scale_factor=64) == pytest.approx((1 / 128, 1 / 128))


def test_losses_that_are_refused_tilt_them():
    """A success of 2 tokens and a failure of 8: each divided by its own length, four to one."""
    assert slopes("vanilla", "seq-mean-token-mean") == pytest.approx((1 / 4, 1 / 16), rel=1e-6)
    for mode in hazards_verl._LOSSES_TILT:
        short, long = slopes(mode)
        assert short / long == pytest.approx(4, rel=1e-6), mode


def test_every_loss_of_verl_is_known():
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    known = {*hazards_verl._LOSSES, *hazards_verl._LOSSES_TILT, *hazards_verl._LOSSES_ENTROPY}
    assert set(POLICY_LOSS_REGISTRY) == {*known, "bypass_mode"}


def test_whitening_erases_delta():
    """verl's reinforce_plus_plus makes the advantages of all tokens sum to 0, whatever the rewards weigh."""
    from verl.utils.torch_functional import masked_whiten

    ours = computed("asym_delta", proto(), delta=0.3)["advantages"]
    mask = proto().batch["response_mask"]
    assert ours.sum() < -1
    white = masked_whiten(ours, mask) * mask
    assert abs(float(white.sum())) < 1e-9


def test_the_weights_of_verl_are_those_of_the_core():
    """The same batches through verl's loop and through Weights: nothing is added or lost between."""
    weights = Weights({"name": "fade", "controller": {"rate": 0.3}}, G)
    group = np.unique(PROMPTS.astype(str), return_inverse=True)[1]
    out = weights.step(REWARDS.astype(int), group, 0.4)
    token = adapter._WEIGHED.set(out.advantages)
    try:
        got = adapter.ESTIMATORS["fade"](proto().batch["token_level_rewards"], proto().batch["response_mask"])[0]
    finally:
        adapter._WEIGHED.reset(token)
    assert torch.equal(got[:, 0], torch.from_numpy(out.advantages))
