"""Settings of verl as plain tables; verl itself is not needed. test_verl.py provokes each through verl's own config."""

import copy

import pytest

from fade_sim.errors import InputError
from llm.adapters.hazards_verl import VERL, check

CLEAN = {
    "algorithm": {"adv_estimator": "fade_sim/fade", "norm_adv_by_std_in_grpo": False, "use_kl_in_reward": False,
                  "filter_groups": {"enable": False}, "rollout_correction": {"bypass_mode": False, "rollout_rs": None}},
    "trainer": {"use_v1": True, "critic_warmup": 0, "v1": {"trainer_mode": "fade_sim/sync", "sampler": {
        "max_off_policy_threshold": 8, "max_off_policy_strategy": "drop", "custom_sampler": {"path": None}}}},
    "actor_rollout_ref": {
        "rollout": {"n": 8, "top_p": 1, "top_k": -1},
        "actor": {"loss_agg_mode": "seq-mean-token-sum", "loss_scale_factor": None, "policy_loss": {
            "loss_mode": "vanilla"}, "ppo_epochs": 1, "ppo_mini_batch_size": 64, "entropy_coeff": 0, "clip_ratio": 0.2,
            "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0}},
    "data": {"train_batch_size": 64}, "reward": {"reward_manager": {"name": "naive"}},
    "distillation": {"enabled": False, "distillation_loss": {"use_task_rewards": True}},
}


def changed(**values):
    """CLEAN with values at dotted names."""
    config = copy.deepcopy(CLEAN)
    for name, value in values.items():
        *path, last = name.split("__")
        table = config
        for key in path:
            table = table[key]
        table[last] = value
    return config


def test_a_clean_config_says_nothing():
    weights, said = check(CLEAN)
    assert said == [] and weights.label == "fade" and weights.group_size == 8


@pytest.mark.parametrize(("values", "message"), [
    ({"algorithm__filter_groups__enable": True}, "^verl: algorithm.filter_groups.enable = True: phat would see mixed"),
    ({"algorithm__adv_estimator": "reinforce_plus_plus"}, "m_S equal m_F: delta is erased; use .*reinforce_pp$"),
    ({"algorithm__use_kl_in_reward": True}, "neither a success nor a failure; use .* = False"),
    ({"actor_rollout_ref__rollout__n": 1, "algorithm__adv_estimator": "fade_sim/rloo"}, "n = 1: .*; use .*n = 2"),
    ({"trainer__v1__trainer_mode": "colocate_async"}, "use trainer.v1.trainer_mode = fade_sim/colocate_async"),
    ({"trainer__v1__trainer_mode": "mine"}, "use trainer.v1.trainer_mode = fade_sim/sync"),
    ({"algorithm__fade": {"delta": 1}}, "algorithm.fade: .*delta"),
    ({"algorithm__fade": [1]}, "algorithm.fade: expected parameters"),
])
def test_refused_in_one_line(values, message):
    with pytest.raises(InputError, match=message) as error:
        check(changed(**values))
    assert "\n" not in str(error.value)


def test_a_config_without_a_setting_that_is_looked_at_is_another_version():
    config = copy.deepcopy(CLEAN)
    del config["actor_rollout_ref"]["actor"]["clip_ratio_c"]
    with pytest.raises(InputError, match=r"verl has no setting 'actor_rollout_ref.actor.clip_ratio_c'"):
        check(config)


def test_every_hazard_says_what_to_use_and_stays_one_line():
    for hazard in VERL:
        assert hazard.use and "\n" not in hazard.why + hazard.use and hazard.setting.count(".") >= 1
