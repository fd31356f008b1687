"""TRL's GRPOTrainer with rules of this project: real training of a tiny random model, on one and two processes."""

import json
import os
import re
import subprocess
import sys
from importlib import import_module, reload
from pathlib import Path

import numpy as np
import pytest
import torch

from fade_sim.errors import InputError
from llm.adapters import hazards
from llm.adapters.weights import Weights

pytest.importorskip("trl", reason="TRL is not installed: pip install -e '.[trl]' in an environment of its own")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
tiny, adapter = import_module("tiny_trl"), import_module("llm.adapters.trl")
PROMPTS, build, settings, watch = tiny.PROMPTS, tiny.build, tiny.settings, tiny.watch
PREFIX, STATE, FadeGRPOTrainer = adapter.PREFIX, adapter.STATE, adapter.FadeGRPOTrainer
HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FADE = {"name": "fade", "controller": {"rate": 0.3, "h_star": 2.1}}  # moves fast, delta off both its ends


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def trained(folder, method=None, **changes):
    trainer = build(folder, method, **changes)
    seen = watch(trainer)
    trainer.train()
    return trainer, seen


def logged(trainer, name: str) -> list[float]:
    return [row[PREFIX + name] for row in trainer.state.log_history if PREFIX + name in row]


def processes(folder: Path, jobs: dict, count: int = 1, code: int = 0) -> dict:
    """{name: [what each process saw]} of runs in processes of their own."""
    start = [sys.executable] if count == 1 else [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    done = subprocess.run([*start, str(HERE / "tiny_trl.py"), str(folder), json.dumps(jobs)], cwd=HERE,
                          capture_output=True, text=True, timeout=900,
                          env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
    assert done.returncode == code, done.stderr[-3000:]
    return {name: [json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in range(count)]
            for name in jobs if (folder / f"{name}.0.json").exists()}


def test_the_example_of_the_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (code,) = (block for block in blocks if "FadeGRPOTrainer" in block)
    options = {k: v for k, v in settings("").items() if k not in ("output_dir", "scale_rewards", "loss_type")}
    given = {"model": tiny.model(), "verifier": tiny.even, "tokenizer": tiny.tokenizer(), "options": options,
             "dataset": tiny.Dataset.from_list([{"prompt": p} for p in PROMPTS])}
    exec(code, given)
    assert given["trainer"].state.global_step == 2 and given["trainer"].weights.label == "fade"
    assert {f"weights/{x}" for x in ("alpha", "delta", "phat", "Hhat", "m_S", "m_F", "sign_ratio", "pass@4")} <= set(
        given["trainer"].state.log_history[0])


# --- advantages ------------------------------------------------------------------------------------------


def test_dr_grpo_is_trl_to_the_bit(tmp_path):
    """Advantages, what is logged of them, losses and weights after four steps: TRL's own, scale_rewards none."""
    own, theirs = (trained(tmp_path, method, max_steps=4) for method in ("dr_grpo", None))
    assert own[1] == theirs[1] and len(own[1]["loss"]) == 4 and np.ptp(own[1]["advantages"]) > 0.5
    assert tiny.weights(own[0]) == tiny.weights(theirs[0])


def test_rollouts_that_cannot_be_judged_leave_their_group(tmp_path):
    """As in TRL, to the rounding of its float32 means: thirds are not exact. phat counts the judged alone."""
    own, theirs = (trained(tmp_path, method, reward="unsure") for method in ("dr_grpo", None))
    assert np.array_equal(own[1]["rewards"][0], theirs[1]["rewards"][0], equal_nan=True)
    assert own[1]["advantages"][0] == pytest.approx(theirs[1]["advantages"][0], abs=2e-7)
    rewards = np.array(own[1]["rewards"])[:, 0]
    assert logged(own[0], "unscored") == np.isnan(rewards).sum(axis=1).tolist() and np.isnan(rewards).any()
    phat = 0.5
    for batch in rewards:
        phat += 0.02 * (np.nanmean(batch) - phat)
    assert logged(own[0], "phat")[-1] == pytest.approx(phat)


def test_the_sign_ratio_arrives_in_the_loss(tmp_path):
    """asym_delta(.4): in every batch of the loss, sum over successes = .4 sum over failures."""
    trainer, seen = trained(tmp_path, "asym_delta(0.4)", max_steps=3)
    for batch in seen["loss"]:
        a = np.array(batch)
        assert a[a > 0].sum() / -a[a < 0].sum() == pytest.approx(0.4, rel=1e-6)
    assert logged(trainer, "sign_ratio") == pytest.approx([0.4] * 3)


def test_fade_weighs_as_the_core_does_on_the_rewards_and_entropies_of_the_run(tmp_path):
    trainer, seen = trained(tmp_path, FADE, max_steps=4)
    core = Weights(FADE, 4)
    for i, (rewards,) in enumerate(seen["rewards"]):
        done = core.step(rewards, np.repeat(np.arange(4), 4), logged(trainer, "entropy")[i])
        assert seen["advantages"][i] == np.float32(done.advantages).tolist()
        for name in ("alpha", "delta", "phat", "Hhat", "m_S", "m_F", "mass_by_solve_rate/(1/4, 1/2]", "pass@2"):
            assert logged(trainer, name)[i] == pytest.approx(done.metrics[name]), name
    assert trainer.weights.controller.step == 4 and 0.3 < logged(trainer, "delta")[-1] < 1


def test_masses_by_hand(tmp_path):
    """m_S = mean of (rewards of 1) times their advantages, m_F of those of 0, over all rollouts."""
    trainer, seen = trained(tmp_path, "asym_delta(0.4)", max_steps=3)
    for i, (rewards,) in enumerate(seen["rewards"]):
        r, a = np.array(rewards), np.array(seen["logged"][i])
        rate = r.reshape(4, 4).mean(axis=1)
        assert logged(trainer, "m_S")[i] == pytest.approx((r * a).mean())
        assert logged(trainer, "m_F")[i] == pytest.approx(-((1 - r) * a).mean())
        assert logged(trainer, "all_fail")[i] == (rate == 0).mean() and logged(trainer, "solve_rate")[i] == rate.mean()
        half = np.abs(a).reshape(4, 4).sum(axis=1)
        share = half[(rate > 0.25) & (rate <= 0.5)].sum() / half.sum()
        assert logged(trainer, "mass_by_solve_rate/(1/4, 1/2]")[i] == pytest.approx(share)


def test_logged_advantages_are_those_of_the_loss(tmp_path):
    """The loss sees them shuffled; TRL alone would have logged r - mean."""
    _, seen = trained(tmp_path, "asym_delta(0.4)", max_steps=3, log_completions=True)
    for told, used, rewards in zip(seen["logged"], seen["loss"], seen["rewards"], strict=True):
        assert sorted(np.float32(told)) == sorted(np.float32(used))
        groups = np.array(rewards[0]).reshape(4, 4)
        assert told != (groups - groups.mean(axis=1, keepdims=True)).ravel().tolist()
    import pandas

    table = pandas.read_parquet(tmp_path / "completions" / "completions_00003.parquet")
    assert table["advantage"].tolist() == seen["logged"][-1]


def test_gradient_accumulation_is_one_batch(tmp_path):
    """Four micro-batches of 4 rollouts: the controller moves once, and the weights are those of the whole batch."""
    trainer, seen = trained(tmp_path, FADE, per_device_train_batch_size=4, gradient_accumulation_steps=4)
    assert trainer.weights.controller.step == 2 and len(seen["advantages"]) == 2 and len(seen["loss"]) == 8
    used = np.concatenate(seen["loss"][:4])
    assert sorted(used) == sorted(np.float32(seen["logged"][0]))


# --- two processes ---------------------------------------------------------------------------------------


def test_two_processes(tmp_path):
    """To the bit TRL's own under dr_grpo; FADE's controller is one, fed by the rollouts of both."""
    half = {"per_device_train_batch_size": 8, "max_steps": 3}
    jobs = {"plain": half, "dr": {**half, "method": "dr_grpo"}, "fade": {**half, "method": FADE}}
    seen = processes(tmp_path, jobs, count=2)
    for rank in (0, 1):
        assert seen["dr"][rank]["advantages"] == seen["plain"][rank]["advantages"]
        assert seen["dr"][rank]["loss"] == seen["plain"][rank]["loss"]
        assert seen["dr"][rank]["parameters"] == seen["plain"][rank]["parameters"]
    one, two = seen["fade"]
    assert one["state"] == two["state"] and one["state"]["controller"]["step"] == 3
    assert one["rewards"] == two["rewards"] and one["advantages"] != two["advantages"]
    core = Weights(FADE, 4)
    rows = [row for row in one["rows"] if PREFIX + "entropy" in row]
    for i, (rewards,) in enumerate(one["rewards"]):
        done = core.step(rewards, np.repeat(np.arange(4), 4), rows[i][PREFIX + "entropy"])
        both = one["advantages"][i] + two["advantages"][i]
        assert both == np.float32(done.advantages).tolist() == np.float32(one["logged"][i]).tolist()
        # TRL's own entropy, of both processes and measured in the loss: the same policy, the same tokens
        assert rows[i][PREFIX + "entropy"] == pytest.approx(rows[i]["entropy"], rel=1e-5)


# --- entropy ---------------------------------------------------------------------------------------------


def test_entropy_is_trls_own_and_costs_a_pass_only_where_it_has_to(tmp_path):
    """On-policy: one pass more. Where TRL scores the batch anyway (old log-probabilities): none. Static rules: none."""
    scored = {}
    for name, method, more in (("on-policy", FADE, {}), ("old", FADE, {"num_iterations": 2, "max_steps": 4}),
                               ("plain old", None, {"num_iterations": 2, "max_steps": 4}), ("static", "power", {}),
                               ("plain", None, {})):
        trainer = build(tmp_path, method, **more)
        made, forward = [], trainer.model.forward

        def counting(*args, made=made, forward=forward, **kwargs):
            if kwargs.get("fused_lm_head"):
                made.append(1)
            return forward(*args, **kwargs)

        trainer.model.forward = counting
        trainer.train()
        scored[name] = len(made)
        if method == FADE:
            first = trainer.state.log_history[0]
            assert first[PREFIX + "entropy"] == pytest.approx(first["entropy"], rel=1e-5)
            assert 0 < first[PREFIX + "entropy"] < np.log(16)
    assert scored["on-policy"] == scored["plain"] + 2 and scored["static"] == scored["plain"]
    assert scored["old"] == scored["plain old"]


@pytest.mark.parametrize("uses", [1, 2])
def test_entropy_is_the_policys_where_the_reference_is_the_same_model(tmp_path, uses):
    """LoRA: the reference is the model without its adapter, scored in the same call. uses 2: TRL scores both."""
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install peft")
    lora = peft.LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj", "o_proj"], init_lora_weights=False)
    trainer = build(tmp_path, FADE, peft=lora, beta=0.1, num_iterations=uses, learning_rate=0.0)
    trainer.train()
    row = trainer.state.log_history[0]
    assert row["kl"] > 0.01  # they do differ
    assert row[PREFIX + "entropy"] == pytest.approx(row["entropy"], rel=1e-5)
    assert trainer.weights.controller.step == 2 // uses


def test_it_learns(tmp_path):
    """Even sums of tokens, under a rule of two sides and a controller that moves: the solve rate rises."""
    trainer, _ = trained(tmp_path, FADE, max_steps=80, learning_rate=0.3)
    rate = logged(trainer, "solve_rate")
    assert np.mean(rate[-10:]) > np.mean(rate[:10]) + 0.2
    assert logged(trainer, "delta")[0] > 0.5 and logged(trainer, "delta")[-1] == 0.3  # entropy falls


# --- evaluation, checkpoints -----------------------------------------------------------------------------


def test_evaluation_does_not_move_the_controller(tmp_path):
    trainer = build(tmp_path, FADE, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=8)
    seen = watch(trainer)
    trainer.train()
    assert trainer.weights.controller.step == 2 and len(seen["advantages"]) > 2
    before = trainer.weights.controller
    found = trainer.evaluate()
    assert trainer.weights.controller == before
    assert 0 <= found[f"eval_{PREFIX}pass@1"] <= found[f"eval_{PREFIX}pass@4"] <= 1
    assert found[f"eval_{PREFIX}pass@1"] == pytest.approx(found["eval_reward"])
    quiet, _ = trained(tmp_path / "quiet", FADE)
    assert quiet.weights.controller.step == before.step


def test_a_run_killed_and_resumed_is_the_run_never_interrupted(tmp_path):
    """Killed without a word in step 5 of 6, resumed from step 4: rows, advantages, controller, weights to the bit.

    Not shuffled: TRL alone does not restore the order of prompts after the first epoch.
    """
    job = {"method": FADE, "max_steps": 6, "save_strategy": "steps", "save_steps": 2, "shuffle_dataset": False}
    ended = processes(tmp_path, {"whole": job, "cut": {**job, "kill": 4}}, code=-9)
    whole = ended["whole"][0]
    assert "cut" not in ended
    saved = json.loads((tmp_path / "cut" / "checkpoint-4" / STATE).read_text())
    assert saved["controller"]["step"] == 4 and not (tmp_path / "cut" / "checkpoint-6").exists()
    rest = processes(tmp_path, {"rest": {**job, "resume": True, "folder": "cut"}})["rest"][0]
    assert rest["advantages"] == whole["advantages"][4:] and len(rest["advantages"]) == 2
    assert rest["state"] == whole["state"] and rest["state"]["controller"]["step"] == 6
    assert rest["parameters"] == whole["parameters"]
    assert rest["rows"][4:6] == whole["rows"][4:6] and rest["rows"][5]["step"] == 6


def test_a_checkpoint_without_the_controller_is_refused(tmp_path):
    """TRL's own checkpoint: phat and Hhat would start anew. A rule without a controller may go on from it."""
    saving = {"save_strategy": "steps", "save_steps": 1}
    trained(tmp_path, None, max_steps=1, **saving)
    with pytest.raises(InputError, match=f"{STATE}: the controller's state cannot be read .* alpha and delta jump"):
        build(tmp_path, FADE, **saving).train(resume_from_checkpoint=True)
    trainer = build(tmp_path, "dr_grpo", **saving)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 2
    with pytest.raises(InputError, match=r"belongs to dr_grpo .* this run weighs by fade"):
        build(tmp_path, FADE, **saving).train(resume_from_checkpoint=True)


# --- what is refused -------------------------------------------------------------------------------------


def test_every_setting_that_is_looked_at_is_one_of_this_trl(tmp_path):
    """And at its defaults TRL is refused for one reason, its division by the group's std; safe settings pass."""
    from trl import GRPOConfig

    options = vars(GRPOConfig(**settings(tmp_path)))
    assert {hazard.setting for hazard in hazards.TRL} - {"method"} <= set(options)
    assert hazards.refuse("TRL", hazards.TRL, options, Weights(FADE, 4)) == []
    args = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    with pytest.raises(InputError, match=r"^TRL: scale_rewards = 'group': .*; use scale_rewards = 'none'$"):
        FadeGRPOTrainer("no model is looked for", args=args, method="fade")
    with pytest.raises(InputError, match=r"TRL: args is missing, .*use scale_rewards = 'none'"):
        FadeGRPOTrainer("no model is looked for", method="fade")


@pytest.mark.parametrize(("changed", "line"), [
    ({"scale_rewards": "group"}, "scale_rewards = 'group'"), ({"scale_rewards": True}, "scale_rewards = 'group'"),
    ({"scale_rewards": "batch"}, "scale_rewards = 'batch'"),
    ({"multi_objective_aggregation": "normalize_then_sum"}, "multi_objective_aggregation = 'normalize_then_sum'"),
    ({"loss_type": "grpo"}, "loss_type = 'grpo'"), ({"loss_type": "bnpo"}, "loss_type = 'bnpo'"),
    ({"loss_type": "sapo"}, "loss_type = 'sapo'"), ({"loss_type": "vespo"}, "loss_type = 'vespo'"),
    ({"delta": 0.3}, "delta = 0.3"), ({"off_policy_mask_threshold": 0.5}, "off_policy_mask_threshold = 0.5"),
])
def test_hazards_are_refused_before_the_model_is_loaded(tmp_path, changed, line):
    from trl import GRPOConfig

    with pytest.raises(InputError, match=f"^TRL: {line}: .*; use [a-z_]+ = [^\n]+$"):
        FadeGRPOTrainer("no model is looked for", args=GRPOConfig(**settings(tmp_path, **changed)), method=FADE)


@pytest.mark.parametrize(("changed", "line"), [
    ({"loss_type": "dapo"}, "loss_type = 'dapo': .*ratios of weights stay"),
    ({"num_iterations": 2, "save_strategy": "steps", "save_steps": 1}, "save_steps = 1: a run resumed there"),
    ({"num_iterations": 2, "save_strategy": "epoch"}, "save_steps = 500: a run resumed there"),
    ({"mask_truncated_completions": True}, "mask_truncated_completions = True: "),
    ({"top_entropy_quantile": 0.5}, "top_entropy_quantile = 0.5: "), ({"entropy_coef": 0.1}, "entropy_coef = 0.1: "),
    ({"delta": 2.0}, "delta = 2.0: "), ({"top_p": 0.9}, "top_p = 0.9: "),
    ({"generation_kwargs": {"temperature": 0.5}}, "generation_kwargs = .*another temperature"),
])
def test_what_only_changes_the_step_is_said_and_runs(tmp_path, changed, line):
    with pytest.warns(UserWarning, match=f"TRL: {line}"):
        trainer = build(tmp_path, FADE, **changed)
    trainer.train()
    assert trainer.state.global_step == 2 and trainer.weights.controller.step == 2 // trainer.args.num_iterations


def test_another_minor_version_is_refused(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.17.0")
    with pytest.raises(ImportError, match=r"private methods of TRL 1.16, found 1.17.0; pip install 'trl~=1.16.0'"):
        reload(adapter)


def test_rewards_that_are_no_verdict_are_refused_with_their_parts(tmp_path):
    """Two functions whose sum is not 0 or 1; with weights 1 and 0 the second is logged alone."""
    with pytest.raises(InputError, match=r"rollout \d+ is [\d.]+ = 1 \* even \([01]\) \+ 1 \* long \([\d.]+\), "
                       "expected 0, 1 or None.*reward_weights"):
        build(tmp_path, FADE, reward="even+long").train()
    trainer = build(tmp_path, FADE, reward="even+long", reward_weights=[1.0, 0.0])
    trainer.train()
    assert trainer.weights.controller.step == 2 and "rewards/long/mean" in trainer.state.log_history[0]


def test_rows_out_of_order_are_refused(tmp_path):
    """ADV-05: a sampler that does not repeat each prompt in a row would mix prompts without a word."""
    class Shuffled(FadeGRPOTrainer):
        def _get_train_sampler(self, dataset=None):
            return [0, 1, 2, 3] * 4 * 2

    with pytest.raises(InputError, match="4 rows in a row are not of one prompt"):
        build(tmp_path, "dr_grpo", kind=Shuffled).train()


def test_one_prompt_twice_in_a_batch_is_two_groups(tmp_path):
    """SCL-08: prompts [a, a] are two groups, each with a baseline of its own."""
    class Twice(FadeGRPOTrainer):
        def _get_train_sampler(self, dataset=None):
            return [0] * 8 + [1] * 8 + [2] * 16

    trainer = build(tmp_path, "dr_grpo", kind=Twice)
    seen = watch(trainer)
    trainer.train()
    groups = np.array(seen["rewards"][0][0]).reshape(4, 4)
    assert seen["advantages"][0] == (groups - groups.mean(axis=1, keepdims=True)).ravel().tolist()


# --- what the hazards say of TRL's losses ----------------------------------------------------------------


LENGTHS = np.array([1, 6, 2, 6, 5, 6, 6, 4])  # of two groups of four, which are two micro-batches


def gradients(folder, loss_type, advantage=1.0, **changes) -> np.ndarray:
    """Gradient of each rollout of one batch, alone with an advantage, on-policy (8, parameters)."""
    if loss_type == "luspo":
        changes["importance_sampling_level"] = "sequence"
    trainer = build(folder, None, loss_type=loss_type, per_device_train_batch_size=4, gradient_accumulation_steps=2,
                    num_generations=4, **changes)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 2
    torch.manual_seed(5)
    batch = trainer._generate_and_score_completions([{"prompt": p} for p in PROMPTS[:2] for _ in range(4)])
    batch["completion_mask"] = (torch.arange(batch["completion_ids"].shape[1]) < torch.tensor(LENGTHS)[:, None]).long()
    batch["num_items_in_batch"] = torch.tensor(sum(LENGTHS))
    out = []
    for i in range(8):
        part = {k: v[4 * (i // 4) : 4 * (i // 4) + 4] if v.dim() else v for k, v in batch.items()}
        part["advantages"] = advantage * torch.eye(8)[i][4 * (i // 4) : 4 * (i // 4) + 4]
        trainer.model.zero_grad()
        trainer._compute_loss(trainer.model, part).backward()
        out.append(torch.cat([p.grad.flatten() for p in trainer.model.parameters()]).double())
    return torch.stack(out).numpy()


def test_a_ratio_of_sequences_keeps_the_weights(tmp_path):
    """On-policy, the mean over a rollout's tokens in the ratio and the sum over them in the loss cancel."""
    sequence = gradients(tmp_path, "dr_grpo", importance_sampling_level="sequence")
    assert np.allclose(sequence, gradients(tmp_path, "dr_grpo"), atol=1e-7)


def factors(folder, loss_type, **changes) -> np.ndarray:
    """What a loss multiplies each rollout by (8,), relative to dr_grpo's constant; the directions must agree."""
    base, mine = gradients(folder, "dr_grpo"), gradients(folder, loss_type, **changes)
    scale = (mine * base).sum(axis=1) / (base * base).sum(axis=1)
    assert np.allclose(mine, scale[:, None] * base, atol=1e-6 * np.abs(base).max())
    return scale


@pytest.mark.parametrize(("loss_type", "factor"), [
    ("dapo", 48 / 36),  # dr_grpo divides by 8 rollouts x 6 tokens, this by the 36 tokens there are
    ("cispo", 0.2 * 48 / 36),  # TRL's default epsilon_high caps a ratio of 1
    ("luspo", 6),
])
def test_losses_that_are_said_keep_the_ratios_of_weights(tmp_path, loss_type, factor):
    assert factors(tmp_path, loss_type) == pytest.approx([factor] * 8, rel=1e-4)


@pytest.mark.parametrize(("loss_type", "expected"), [
    ("grpo", 6 / LENGTHS), ("sapo", 6 / LENGTHS), ("bnpo", [24 / 15] * 4 + [24 / 21] * 4)])
def test_losses_that_are_refused_weigh_by_length(tmp_path, loss_type, expected):
    assert factors(tmp_path, loss_type) == pytest.approx(expected, rel=1e-4)


def test_trls_delta_below_one_cuts_the_gradient_of_successes(tmp_path):
    """The name is FADE's, the meaning is not: a success (advantage above 0) gets no gradient, a failure all of it."""
    for advantage, left in ((1.0, 0.0), (-1.0, 1.0)):
        cut, full = (gradients(tmp_path, "dr_grpo", advantage, delta=delta) for delta in (0.3, None))
        assert np.allclose(cut, left * full) and np.abs(full).max() > 0


def test_normalize_then_sum_erases_the_sign_ratio(tmp_path):
    """What TRL would do to any weights: centred over the batch, successes and failures weigh the same in sum."""
    trainer = build(tmp_path, None, multi_objective_aggregation="normalize_then_sum")
    trainer.model.train()
    a = trainer._generate_and_score_completions([{"prompt": p} for p in PROMPTS[:4] for _ in range(4)])["advantages"]
    assert float(a[a > 0].sum()) == pytest.approx(-float(a[a < 0].sum()), rel=1e-4)
