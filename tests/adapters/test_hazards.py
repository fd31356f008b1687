"""Settings of TRL that undo a rule: each refused or said in one line. TRL itself is not needed here."""

import re

import pytest

from fade_sim.errors import InputError
from llm.adapters.hazards import TRL, Hazard, refuse
from llm.adapters.weights import Weights

SAFE = {  # what GRPOConfig holds at its defaults, but for the two settings that every run has to change
    "scale_rewards": "none", "loss_type": "dr_grpo", "multi_objective_aggregation": "sum_then_normalize",
    "num_generations": 8, "delta": None, "off_policy_mask_threshold": None, "epsilon": 0.2, "num_iterations": 1,
    "steps_per_generation": 1, "gradient_accumulation_steps": 1, "mask_truncated_completions": False,
    "top_entropy_quantile": 1.0, "use_vllm": False, "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask", "entropy_coef": 0.0, "use_adaptive_entropy": False,
    "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0, "temperature": 1.0, "generation_kwargs": None,
    "save_strategy": "steps", "save_steps": 500}

# (changed settings, method, refused or said, part of the line)
CASES = [
    ({"scale_rewards": "group"}, "fade", "refused", "scale_rewards = 'group': .*alpha is not alpha.*; use .* = 'none'"),
    ({"scale_rewards": "batch"}, "dr_grpo", "refused", "scale_rewards = 'batch': .*undoes the scale"),
    ({"multi_objective_aggregation": "normalize_then_sum"}, "fade", "refused", "m_S equal m_F: delta is erased"),
    ({"num_generations": 1}, "dr_grpo", "refused", "num_generations = 1: .*every weight would be 0"),
    ({}, "dapo", "refused", "method = 'dapo.*resampled, which TRL does not do; use method = 'grpo'"),
    ({"loss_type": "grpo"}, "fade", "refused", "loss_type = 'grpo': .*own length.*m_S/m_F is not the rule's"),
    ({"loss_type": "bnpo"}, "asym_delta", "refused", "loss_type = 'bnpo': .*micro-batch"),
    ({"loss_type": "sapo"}, "fade", "refused", "loss_type = 'sapo': .*different gates"),
    ({"loss_type": "vespo"}, "maxrl", "refused", "loss_type = 'vespo': .*importance ratio"),
    ({"loss_type": "newpo"}, "dr_grpo", "refused", "loss_type = 'newpo': it is not known"),
    ({"delta": 0.3}, "fade", "refused", "delta = 0.3: TRL's delta .*gradient of every success.*; use delta = None"),
    ({"off_policy_mask_threshold": 0.5}, "fade", "refused", "drops failures, never successes"),
    ({"loss_type": "grpo"}, "power", "said", "own length"), ({"loss_type": "bnpo"}, "dr_grpo", "said", "micro-batch"),
    ({"loss_type": "sapo"}, "dr_grpo", "said", "gates"), ({"loss_type": "vespo"}, "dr_grpo", "said", "functions"),
    ({"loss_type": "dapo"}, "fade", "said", "loss_type = 'dapo': .*ratios of weights stay.*; use loss_type"),
    ({"loss_type": "cispo"}, "fade", "said", "epsilon_high"),
    ({"loss_type": "luspo"}, "fade", "said", "rollouts alone"),
    ({"delta": 4.0}, "fade", "said", "delta = 4.0: it caps the importance ratio of failures"),
    ({"num_iterations": 2, "save_strategy": "no"}, "fade", "said", "epsilon = 0.2: .*masses logged are those before"),
    ({"mask_truncated_completions": True}, "fade", "said", "mask_truncated_completions = True: .*m_F is below"),
    ({"top_entropy_quantile": 0.2}, "dr_grpo", "said", "top_entropy_quantile = 0.2: only tokens of high entropy"),
    ({"use_vllm": True}, "fade", "said", "vllm_importance_sampling_mode = 'sequence_mask': .*; use .*'token_truncate'"),
    ({"entropy_coef": 0.01}, "fade", "said", "entropy_coef = 0.01: the rule's controller"),
    ({"use_adaptive_entropy": True}, "fade", "said", "controller steers"),
    ({"top_p": 0.9}, "fade", "said", "top_p = 0.9: .*; use top_p = 1.0"), ({"top_k": 50}, "fade", "said", "top_k = 50"),
    ({"min_p": 0.1}, "fade", "said", "min_p = 0.1"),
    ({"repetition_penalty": 1.2}, "fade", "said", "repetition_penalty = 1.2"),
    ({"generation_kwargs": {"temperature": 0.5}}, "dr_grpo", "said", "generation_kwargs = .*another temperature"),
    ({"steps_per_generation": 4, "gradient_accumulation_steps": 2, "save_steps": 3}, "fade", "said", "save_steps = 3"),
]


@pytest.mark.parametrize(("changed", "method", "outcome", "line"), CASES)
def test_a_hazard_is_provoked(changed, method, outcome, line):
    weights = Weights(method, 8)
    if outcome == "refused":
        with pytest.raises(InputError, match=line) as error:
            refuse("TRL", TRL, SAFE | changed, weights)
        lines = [str(error.value)]
    else:
        lines = refuse("TRL", TRL, SAFE | changed, weights)
        assert any(re.search(line, said) for said in lines), lines
    assert all("\n" not in said and said.startswith("TRL: ") for said in lines)


def test_every_hazard_of_the_table_is_provoked_by_a_case():
    found = set()
    for changed, method, *_ in CASES:
        options = SAFE | changed | {"method": method}
        found |= {i for i, hazard in enumerate(TRL) if hazard.bad(options, Weights(method, 8))}
    assert found == set(range(len(TRL)))
    assert all(hazard.name and hazard.where and hazard.why and hazard.use for hazard in TRL)


@pytest.mark.parametrize(("method", "changed"), [
    ("fade", {}), ("asym_delta", {}), ("dr_grpo", {}),
    ("dr_grpo", {"top_p": 0.9, "entropy_coef": 0.1}),  # no controller that reads an entropy
    ("fade", {"gradient_accumulation_steps": 4, "steps_per_generation": 4}),  # one batch, one update
    ("fade", {"use_vllm": True, "vllm_importance_sampling_mode": "token_truncate"}),
    ("reinforce_pm1", {"num_generations": 1}),  # no baseline that needs a group
])
def test_safe_settings_pass_in_silence(method, changed):
    assert refuse("TRL", TRL, SAFE | changed, Weights(method, 8)) == []


def test_a_setting_that_the_engine_lost_is_no_silence():
    old = {key: value for key, value in SAFE.items() if key != "off_policy_mask_threshold"}
    with pytest.raises(InputError, match="TRL has no setting 'off_policy_mask_threshold'"):
        refuse("TRL", TRL, old, Weights("dr_grpo", 8))


def test_another_engine_brings_its_own_list():
    mine = (Hazard("filter", "sampling", "filter_groups", lambda o, w: o["filter_groups"], "phat drifts to 1/2",
                   "filter_groups = False"),)
    assert refuse("mine", mine, {"filter_groups": False}, Weights("dr_grpo", 8)) == []
    with pytest.raises(InputError, match=r"^mine: filter_groups = True: phat drifts to 1/2; use filter_groups = F"):
        refuse("mine", mine, {"filter_groups": True}, Weights("dr_grpo", 8))
