"""Settings of verl that undo a rule after it has weighed, or blind its controller. Facts of its 0.9.1 source.

Reads a composed config as plain tables; needs no verl.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fade_sim.advantage import RULES, BatchStats, controller, step_table
from fade_sim.errors import InputError, nearest
from llm.adapters.hazards import Hazard, refuse
from llm.adapters.weights import Weights

ESTIMATOR = "fade_sim/"  # prefix of the names of estimators and trainers in verl
SECTION = "fade"  # of `algorithm`: parameters of the rule, and a table `controller`
_MODES = ("sync", "colocate_async", "separate_async")

# --- whose advantages? ---------------------------------------------------------------------------------

_WHITENED = "it centres and divides over the batch after weighing, which makes m_S equal m_F: delta is erased"
_OWN = {  # verl's estimators: why a rule of this project is not what runs, and what to use instead
    "gae": ("its advantages are those of a critic, whitened over the batch", "dr_grpo"),
    "grpo": ("it divides by each group's std unless algorithm.norm_adv_by_std_in_grpo = False, which multiplies the "
             "difficulty profile by 1/sqrt(p(1-p)), so alpha is not alpha", "dr_grpo (or grpo_verl, to divide)"),
    "grpo_vectorized": ("it divides by each group's std unless algorithm.norm_adv_by_std_in_grpo = False, which "
                        "multiplies the difficulty profile by 1/sqrt(p(1-p))", "dr_grpo (or grpo_verl, to divide)"),
    "reinforce_plus_plus": (_WHITENED, "reinforce_pp"),
    "reinforce_plus_plus_baseline": (_WHITENED, "reinforce_pp_baseline"),
    "gdpo": (_WHITENED, "dr_grpo"),
    "rloo": ("it is verl's own", "rloo"), "rloo_vectorized": ("it is verl's own", "rloo"),
    "gpg": ("it multiplies by 1/mean reward of the batch", "gpg"),
    "grpo_passk": ("it divides by each group's std and keeps the best rollout alone", "pass_at_k_tang"),
}


def rule_of(algorithm: Mapping[str, Any]) -> str:
    """The rule that `algorithm.adv_estimator` names; InputError where it is verl's own or unknown."""
    name = str(algorithm["adv_estimator"])
    if name.startswith(ESTIMATOR):
        rule = name.removeprefix(ESTIMATOR)
        if rule not in RULES:
            raise InputError(f"algorithm.adv_estimator: unknown rule {rule!r}{nearest(rule, RULES)}")
        return rule
    why, use = _OWN.get(name, ("it is not a rule of this project", "<rule>"))
    raise InputError(f"verl: algorithm.adv_estimator = {name!r}: {why}; use algorithm.adv_estimator = "
                     f"{ESTIMATOR}{use}")


def weights_of(algorithm: Mapping[str, Any], group_size: int) -> Weights:
    """The rule of `algorithm.adv_estimator`, with the parameters and the controller of `algorithm.fade`."""
    rule, given = rule_of(algorithm), algorithm.get(SECTION)
    given = {} if given is None else given
    if not isinstance(given, Mapping) or "name" in given:
        raise InputError("algorithm.fade: expected parameters of the rule and a table `controller`; the rule itself is "
                         f"algorithm.adv_estimator = {ESTIMATOR}<rule>")
    table = {"name": rule, **given}
    if table.get("controller", {}) is None:
        del table["controller"]
    try:
        return Weights(table, group_size)
    except InputError as error:
        raise InputError(f"algorithm.fade: {error}") from None


# --- settings ------------------------------------------------------------------------------------------

_ACTOR, _ROLLOUT, _CORRECTION = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "algorithm.rollout_correction"
_FILTER, _SAMPLER = "algorithm.filter_groups.enable", "trainer.v1.sampler"
_AGG, _LOSS = f"{_ACTOR}.loss_agg_mode", f"{_ACTOR}.policy_loss.loss_mode"
_CONSTANT = f"{_AGG} = 'seq-mean-token-sum'"

_LOSSES = ("vanilla", "gspo", "gpg", "cispo", "dppo_tv", "dppo_kl", "dro")  # on fresh rollouts: weight times log-prob
_LOSSES_TILT = {  # these ignore loss_agg_mode
    "sapo": "it divides every rollout by its own length, and damps failures and successes by different gates",
    "geo_mean": "it divides every rollout by its own length, so long failures weigh less than short successes",
}
_LOSSES_ENTROPY = {
    "clip_cov": "it drops the tokens that would lower entropy most, a second force on it",
    "kl_cov": "it holds back the tokens that would lower entropy most, a second force on it",
}


def _pays_uniform(w: Weights) -> bool:
    """True where a group without a failure, or without a success, has a weight under this rule."""
    if w.method.rule.reads_batch:
        return True
    state = controller.update(w.controller, 0.5, 1.0)
    c = np.arange(w.group_size + 1)
    table, _ = step_table(w.method, state, w.group_size, BatchStats(c, np.full(len(c), w.group_size)))
    return bool(table[0, 1] or table[-1, 0])


def _off_policy(o: Mapping[str, Any]) -> bool:
    """Some updates are on rollouts of an older policy."""
    return (o["trainer.v1.trainer_mode"] != f"{ESTIMATOR}sync" or o[f"{_ACTOR}.ppo_epochs"] > 1
            or o[f"{_ACTOR}.ppo_mini_batch_size"] < o["data.train_batch_size"])


def _overlong(o: Mapping[str, Any]) -> bool:
    return o["reward.reward_manager.name"] == "dapo" and bool(o.get("reward.reward_kwargs.overlong_buffer_cfg.enable"))


VERL = (
    Hazard("verl's old trainer", "start", "trainer.use_v1", lambda o, w: not o["trainer.use_v1"],
           "the trainers of this project are of verl's V1", "trainer.use_v1 = True"),
    Hazard("rewards that are not 0 or 1", "rewards", "algorithm.use_kl_in_reward",
           lambda o, w: bool(o["algorithm.use_kl_in_reward"]),
           "it subtracts a KL from the reward, which is then neither a success nor a failure",
           f"algorithm.use_kl_in_reward = False and, for a KL, {_ACTOR}.use_kl_loss = True"),
    Hazard("rewards that are not 0 or 1", "rewards", "reward.reward_manager.name", lambda o, w: _overlong(o),
           "its overlong penalty makes rewards that are neither a success nor a failure",
           "reward.reward_kwargs.overlong_buffer_cfg.enable = False"),
    # --- groups that the controller, or the rule, does not see
    Hazard("groups filtered before phat", "sampling", _FILTER, lambda o, w: bool(o[_FILTER]) and w.adaptive,
           "phat would see mixed groups only and drift to 1/2", f"{_FILTER} = False"),
    Hazard("groups filtered that the rule weighs", "sampling", _FILTER,
           lambda o, w: bool(o[_FILTER]) and not w.adaptive and not w.method.rule.mixed_only and _pays_uniform(w),
           "this rule learns from uniform groups, or reads the whole batch", f"{_FILTER} = False"),
    Hazard("rule of resampled groups", "sampling", _FILTER,
           lambda o, w: w.method.rule.mixed_only and not o[_FILTER],
           "this rule is defined on mixed groups, resampled until there are enough", f"{_FILTER} = True"),
    Hazard("groups chosen by an unknown sampler", "sampling", f"{_SAMPLER}.custom_sampler.path",
           lambda o, w: bool(o[f"{_SAMPLER}.custom_sampler.path"]) and w.adaptive,
           "what it leaves out, phat does not see", f"{_SAMPLER}.custom_sampler.path = null"),
    # --- entropy that is not there
    Hazard("no entropy", "old log-probabilities", f"{_CORRECTION}.bypass_mode",
           lambda o, w: bool(o[f"{_CORRECTION}.bypass_mode"]) and w.reads_entropy,
           "verl then computes no entropy, which this rule reads", f"{_CORRECTION}.bypass_mode = False"),
    # --- what the loss divides by
    Hazard("weights divided by length", "loss", _AGG,
           lambda o, w: o[_AGG] == "seq-mean-token-mean" and not w.balanced,
           "it divides every rollout by its own length, so long failures weigh less than short successes: m_S/m_F is "
           "not the rule's", _CONSTANT),
    Hazard("weights divided by the micro-batch", "loss", f"{_ACTOR}.loss_scale_factor",
           lambda o, w: o[_AGG] == "seq-mean-token-sum-norm" and o[f"{_ACTOR}.loss_scale_factor"] is None,
           "verl then divides by the longest answer of each micro-batch, so a rollout's weight depends on its "
           "neighbours", f"{_ACTOR}.loss_scale_factor = the largest number of response tokens"),
    *(Hazard("weights divided by length or sign", "loss", _LOSS,
             lambda o, w, name=name: o[_LOSS] == name and not w.balanced,
             f"{why}: m_S/m_F is not the rule's", f"{_LOSS} = 'vanilla'") for name, why in _LOSSES_TILT.items()),
    Hazard("no weights in the loss", "loss", "distillation.enabled",
           lambda o, w: bool(o["distillation.enabled"]) and not o["distillation.distillation_loss.use_task_rewards"],
           "the loss is then a teacher's alone, and no weight enters it",
           "distillation.distillation_loss.use_task_rewards = True"),
    Hazard("unknown loss", "loss", _LOSS,
           lambda o, w: o[_LOSS] not in (*_LOSSES, *_LOSSES_TILT, *_LOSSES_ENTROPY),
           "it is not known what this loss leaves of the weights", f"{_LOSS} = 'vanilla'"),
    # --- what is allowed, and said
    Hazard("group filter", "sampling", _FILTER,
           lambda o, w: bool(o[_FILTER]) and not w.adaptive and not w.method.rule.mixed_only and not _pays_uniform(w),
           "groups that this rule gives no weight to are replaced: solve rate, masses and pass@k in the log are those "
           "of the groups that are left", f"{_FILTER} = False", refuse=False),
    Hazard("old groups dropped", "sampling", f"{_SAMPLER}.max_off_policy_strategy",
           lambda o, w: o["trainer.v1.trainer_mode"] != f"{ESTIMATOR}sync" and w.adaptive
           and o[f"{_SAMPLER}.max_off_policy_threshold"] is not None
           and o[f"{_SAMPLER}.max_off_policy_strategy"] == "drop",
           "groups that took long, often the hard ones, are dropped unseen by phat",
           f"{_SAMPLER}.max_off_policy_strategy = 'wait'", refuse=False),
    Hazard("step scaled", "loss", _AGG, lambda o, w: o[_AGG] == "token-mean",
           "it divides by the tokens of each mini-batch: ratios of weights stay within it, but the step shrinks as "
           "answers grow", _CONSTANT, refuse=False),
    Hazard("weights divided by length", "loss", _AGG, lambda o, w: o[_AGG] == "seq-mean-token-mean" and w.balanced,
           "it divides every rollout by its own length", _CONSTANT, refuse=False),
    *(Hazard("weights divided by length or sign", "loss", _LOSS,
             lambda o, w, name=name: o[_LOSS] == name and w.balanced,
             f"{why}, though this rule weighs both alike", f"{_LOSS} = 'vanilla'", refuse=False)
      for name, why in _LOSSES_TILT.items()),
    *(Hazard("second force on entropy", "loss", _LOSS, lambda o, w, name=name: o[_LOSS] == name and w.reads_entropy,
             why, f"{_LOSS} = 'vanilla'", refuse=False) for name, why in _LOSSES_ENTROPY.items()),
    Hazard("second force on entropy", "loss", f"{_ACTOR}.entropy_coeff",
           lambda o, w: bool(o[f"{_ACTOR}.entropy_coeff"]) and w.reads_entropy,
           "the rule's controller steers the entropy already", f"{_ACTOR}.entropy_coeff = 0", refuse=False),
    Hazard("second force on entropy", "loss", "distillation.enabled",
           lambda o, w: bool(o["distillation.enabled"] and o["distillation.distillation_loss.use_task_rewards"])
           and w.reads_entropy,
           "a teacher moves the entropy as well", "distillation.enabled = False", refuse=False),
    Hazard("controller ahead of the policy", "start", "trainer.critic_warmup",
           lambda o, w: o["trainer.critic_warmup"] > 1 and w.adaptive,
           "before this step the controller moves and the policy does not", "trainer.critic_warmup = 0", refuse=False),
    Hazard("clip that favours one sign", "loss", f"{_ACTOR}.clip_ratio_high",
           lambda o, w: _off_policy(o) and o[f"{_ACTOR}.clip_ratio_high"] != o[f"{_ACTOR}.clip_ratio_low"],
           "on rollouts of an older policy successes are cut above 1 + it and failures below 1 - clip_ratio_low: with "
           "two bounds the clip has a sign of its own", f"{_ACTOR}.clip_ratio_high = clip_ratio_low", refuse=False),
    Hazard("ratio of failures capped", "loss", f"{_ACTOR}.clip_ratio_c",
           lambda o, w: _off_policy(o) and o[_LOSS] == "vanilla",
           "on rollouts of an older policy it caps the importance ratio of failures alone: m_F is below what is "
           "logged", f"{_ACTOR}.ppo_mini_batch_size = data.train_batch_size, {_ACTOR}.ppo_epochs = 1 and "
           f"trainer.v1.trainer_mode = {ESTIMATOR}sync", refuse=False),
    Hazard("setting that is not read", "loss", f"{_ACTOR}.clip_ratio",
           lambda o, w: None not in (o[f"{_ACTOR}.clip_ratio_low"], o[f"{_ACTOR}.clip_ratio_high"])
           and o[f"{_ACTOR}.clip_ratio"] not in (o[f"{_ACTOR}.clip_ratio_low"], o[f"{_ACTOR}.clip_ratio_high"]),
           "verl does not read it while clip_ratio_low and clip_ratio_high have values",
           f"{_ACTOR}.clip_ratio_low and clip_ratio_high", refuse=False),
    Hazard("setting that is not read", "advantages", "algorithm.norm_adv_by_std_in_grpo",
           lambda o, w: bool(o["algorithm.norm_adv_by_std_in_grpo"]),
           "only verl's own estimators read it; this rule divides by a std if its definition does",
           "algorithm.norm_adv_by_std_in_grpo = False", refuse=False),
    Hazard("rollouts masked by the sampler's ratio", "loss", f"{_CORRECTION}.rollout_rs",
           lambda o, w: o[f"{_CORRECTION}.rollout_rs"] is not None,
           "it drops rollouts or tokens by the ratio to the sampler, long rollouts first, after they were weighed",
           f"{_CORRECTION}.rollout_rs = null", refuse=False),
    *(Hazard("sampling from another policy", "sampling", f"{_ROLLOUT}.{name}",
             lambda o, w, name=name, neutral=neutral: o[f"{_ROLLOUT}.{name}"] not in neutral and w.reads_entropy,
             "rollouts come from a cut distribution, Hhat is the entropy of the whole one",
             f"{_ROLLOUT}.{name} = {neutral[0]!r}", refuse=False)
      for name, neutral in (("top_p", (1, 1.0)), ("top_k", (-1, 0, None)))),
)


def check(config: Mapping[str, Any]) -> tuple[Weights, list[str]]:
    """(the rule of a composed config of verl, what is worth saying of its settings, one line each).

    config: nested tables of plain values. Raises InputError, one line with setting and value to use, on what would
    undo the rule or blind its controller.
    """
    options = _dotted(config)
    n = options[f"{_ROLLOUT}.n"]
    if n == 1 and RULES[rule_of(config["algorithm"])].group_baseline:
        raise InputError(f"verl: {_ROLLOUT}.n = 1: the baseline of this rule is the rest of the group, so every weight "
                         f"would be 0; use {_ROLLOUT}.n = 2 or more")
    weights = weights_of(config["algorithm"], n)
    mode, known = str(options["trainer.v1.trainer_mode"]), [f"{ESTIMATOR}{name}" for name in _MODES]
    if mode not in known:
        moved = "move the controller, check settings, log and save its state"
        use = f"{ESTIMATOR}{mode}" if mode in _MODES else known[0]
        raise InputError(f"verl: trainer.v1.trainer_mode = {mode!r}: verl's own trainers do not {moved}; use "
                         f"trainer.v1.trainer_mode = {use}")
    return weights, refuse("verl", VERL, options, weights)


def _dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every value of nested tables by its dotted name."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            out |= _dotted(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out
