"""Settings of an engine that undo a rule after it has weighed, or blind its controller: refused before a run starts.

What erases an axis of the rule (sign, difficulty) or biases phat is refused; what only changes the step beside it
is allowed and said. Facts of TRL are those of its 1.16 source. Another engine adds a list of its own.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fade_sim.errors import InputError
from llm.adapters.weights import Weights


@dataclass(frozen=True)
class Hazard:
    """One setting, the values of it that are dangerous, why, and what to use instead."""

    name: str  # what would happen, in a few words
    where: str  # at which point of the engine
    setting: str
    bad: Callable[[Mapping[str, Any], Weights], bool]  # (all settings, the rule) -> is it dangerous here?
    why: str
    use: str  # what to use instead, setting and value
    refuse: bool = True  # False: it changes the step but not what the rule means

    def said(self, options: Mapping[str, Any]) -> str:
        """One line: setting, its value, why, what to use."""
        return f"{self.setting} = {options[self.setting]!r}: {self.why}; use {self.use}"


def refuse(engine: str, hazards: tuple[Hazard, ...], options: Mapping[str, Any], weights: Weights) -> list[str]:
    """What is only worth saying of these settings, one line each.

    options: every setting of the engine by name; `method`, the rule, is added to them. Raises InputError with one
    line at the first setting that the rule would not survive, and where the engine lacks a setting that is looked
    at: it is another version.
    """
    options = {**options, "method": weights.label}
    lines = []
    for hazard in hazards:
        if hazard.setting not in options:
            raise InputError(f"{engine} has no setting {hazard.setting!r}: this is not a version that can be checked")
        if hazard.bad(options, weights):
            if hazard.refuse:
                raise InputError(f"{engine}: {hazard.said(options)}")
            lines.append(f"{engine}: {hazard.said(options)}")
    return lines


def warn(lines: list[str]) -> None:
    for line in lines:
        warnings.warn(line, stacklevel=3)


# --- TRL -----------------------------------------------------------------------------------------------

# What a loss divides the sum over tokens by, and so what is left of a rollout's weight.
_LOSS_KEEPS = ("dr_grpo",)  # by a constant: the weights, as they are
_LOSS_SCALES = ("dapo", "cispo", "luspo")  # by one number for all rollouts of a batch: their ratios
_LOSS_TILTS = {
    "grpo": "it divides every rollout by its own length, so long failures weigh less than short successes",
    "sapo": "it divides every rollout by its own length, and damps failures and successes by different gates",
    "bnpo": "it divides by the tokens of each micro-batch, so a rollout's weight depends on its neighbours' lengths",
    "vespo": "it damps failures and successes by different functions of the importance ratio",
}
_SCALES = {
    "dapo": "it divides by the tokens of the batch: ratios of weights stay, but the step shrinks as answers grow",
    "cispo": "it divides by the tokens of the batch and caps the ratio at epsilon_high (by default .2: every weight "
             "is multiplied by it): ratios of weights stay, their size does not",
    "luspo": "it divides by rollouts alone: ratios of weights stay, the step is max_completion_length times as large",
}


def _off_policy(o: Mapping[str, Any]) -> bool:
    """TRL keeps old log-probabilities: some updates are on rollouts of an older policy."""
    return o["gradient_accumulation_steps"] % (o["steps_per_generation"] * o["num_iterations"]) != 0


def _window_cut(o: Mapping[str, Any]) -> bool:
    window = o["steps_per_generation"] * o["num_iterations"] / o["gradient_accumulation_steps"]
    if o["save_strategy"] == "no" or window <= 1:
        return False
    return o["save_strategy"] == "epoch" or o["save_steps"] % window != 0


TRL = (
    Hazard("division by the group's std", "advantages", "scale_rewards", lambda o, w: o["scale_rewards"] == "group",
           "the division by each group's std multiplies the difficulty profile by 1/sqrt(p(1-p)), so alpha is not "
           "alpha (where it is wanted, it is a rule: method = 'grpo_trl')", "scale_rewards = 'none'"),
    Hazard("division by the batch's std", "advantages", "scale_rewards",
           lambda o, w: o["scale_rewards"] not in ("group", "none"),
           "the division by the std of the batch undoes the scale of the rule "
           "(where it is wanted, it is a rule: method = 'lite_ppo')", "scale_rewards = 'none'"),
    Hazard("centring over the batch", "advantages", "multi_objective_aggregation",
           lambda o, w: o["multi_objective_aggregation"] != "sum_then_normalize",
           "it centres and divides over the batch, which makes m_S equal m_F: delta is erased",
           "multi_objective_aggregation = 'sum_then_normalize'"),
    Hazard("one rollout of a prompt", "sampling", "num_generations",
           lambda o, w: o["num_generations"] < 2 and w.method.rule.group_baseline,
           "the baseline of this rule is the rest of the group, so every weight would be 0",
           "num_generations of 2 or more"),
    Hazard("rule of resampled groups", "sampling", "method", lambda o, w: w.method.rule.mixed_only,
           "this rule needs uniform groups to be resampled, which TRL does not do",
           "method = 'grpo', which it then is"),
    *(Hazard("weights divided by length or sign", "loss", "loss_type",
             lambda o, w, name=name: o["loss_type"] == name and not w.balanced,
             f"{why}: m_S/m_F is not the rule's", "loss_type = 'dr_grpo'") for name, why in _LOSS_TILTS.items()),
    Hazard("unknown loss", "loss", "loss_type",
           lambda o, w: o["loss_type"] not in (*_LOSS_KEEPS, *_LOSS_SCALES, *_LOSS_TILTS),
           "it is not known what this loss leaves of the weights", "loss_type = 'dr_grpo'"),
    Hazard("cap below 1 on the ratio", "loss", "delta",
           lambda o, w: o["delta"] is not None and o["delta"] < 1,
           "TRL's delta caps the importance ratio; below 1 it cuts the gradient of every success (FADE's delta is a "
           "parameter of the rule: method = {'name': 'asym_delta', 'delta': ...})", "delta = None"),
    Hazard("failures masked", "loss", "off_policy_mask_threshold",
           lambda o, w: o["off_policy_mask_threshold"] is not None,
           "it drops failures, never successes, after they were weighed: m_F is not the rule's, and delta not delta",
           "off_policy_mask_threshold = None"),
    # --- what is allowed, and said
    *(Hazard("weights divided by length or sign", "loss", "loss_type",
             lambda o, w, name=name: o["loss_type"] == name and w.balanced,
             f"{why}, though this rule weighs both alike", "loss_type = 'dr_grpo'", refuse=False)
      for name, why in _LOSS_TILTS.items()),
    *(Hazard("step scaled", "loss", "loss_type", lambda o, w, name=name: o["loss_type"] == name, why,
             "loss_type = 'dr_grpo'", refuse=False) for name, why in _SCALES.items()),
    Hazard("ratio of failures capped", "loss", "delta", lambda o, w: o["delta"] is not None and o["delta"] >= 1,
           "it caps the importance ratio of failures alone: on old rollouts m_F is below the rule's",
           "delta = None", refuse=False),
    Hazard("clip", "loss", "epsilon", lambda o, w: _off_policy(o),
           "some updates are on rollouts of an older policy, where the clip cuts successes above and failures below "
           "it: the masses logged are those before the clip",
           "num_iterations = 1 and steps_per_generation = gradient_accumulation_steps", refuse=False),
    Hazard("truncated rollouts masked", "loss", "mask_truncated_completions",
           lambda o, w: bool(o["mask_truncated_completions"]),
           "truncated rollouts, mostly failures, count in phat and in their group but carry no gradient, and Hhat "
           "misses their tokens: m_F is below what is logged", "mask_truncated_completions = False", refuse=False),
    Hazard("tokens masked", "loss", "top_entropy_quantile", lambda o, w: o["top_entropy_quantile"] < 1,
           "only tokens of high entropy carry the weights, and failures may have more of them",
           "top_entropy_quantile = 1.0", refuse=False),
    Hazard("rollouts masked by the sampler's ratio", "loss", "vllm_importance_sampling_mode",
           lambda o, w: o["use_vllm"] and o["vllm_importance_sampling_correction"]
           and o["vllm_importance_sampling_mode"].endswith("_mask"),
           "it drops rollouts or tokens by the ratio to the sampler, long rollouts first, after they were weighed",
           "vllm_importance_sampling_mode = 'token_truncate'", refuse=False),
    Hazard("second force on entropy", "loss", "entropy_coef",
           lambda o, w: bool(o["entropy_coef"] or o["use_adaptive_entropy"]) and w.reads_entropy,
           "the rule's controller steers the entropy already",
           "entropy_coef = 0.0 and use_adaptive_entropy = False", refuse=False),
    *(Hazard("sampling from another policy", "sampling", name,
             lambda o, w, name=name, neutral=neutral: o[name] not in neutral and w.reads_entropy,
             "rollouts come from a cut distribution, Hhat is the entropy of the whole one",
             f"{name} = {neutral[0]!r}", refuse=False)
      for name, neutral in (("top_p", (1.0,)), ("top_k", (0, None)), ("min_p", (None, 0.0)),
                            ("repetition_penalty", (1.0,)))),
    Hazard("sampling at another temperature", "sampling", "generation_kwargs",
           lambda o, w: (o["generation_kwargs"] or {}).get("temperature", o["temperature"]) != o["temperature"],
           "rollouts are sampled at another temperature than that of their log-probabilities and of Hhat",
           "temperature for both", refuse=False),
    Hazard("checkpoint between two uses of a batch", "checkpoint", "save_steps",
           lambda o, w: w.adaptive and _window_cut(o),
           "a run resumed there samples a new batch, which moves the controller once more than an uninterrupted run",
           "save_steps = a multiple of steps_per_generation * num_iterations / gradient_accumulation_steps",
           refuse=False),
)
