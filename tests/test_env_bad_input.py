"""FadeBandit-v0: every wrong keyword, action and reset option is one line that says what was expected."""

import re

import gymnasium as gym
import numpy as np
import pytest

from fade_sim.errors import InputError

ENV = "fade_sim.env:FadeBandit-v0"
SMALL = {"train_prompts": 12, "test_prompts": 5, "arms": 9, "hidden": 4, "token": 3}


def small(**more):
    return gym.make(ENV, **{**SMALL, **more})


def small_vec(n=6, **more):
    return gym.make_vec(ENV, num_envs=n, **{**SMALL, **more})


# --- bad input ------------------------------------------------------------------------------------------

BAD_KEYWORDS = [
    ({"train_prompt": 5}, "unknown keyword 'train_prompt'; did you mean 'train_prompts'?"),
    ({"splitt": "test"}, "unknown keyword 'splitt'; did you mean 'split'?"),
    ({"seed": 3}, "unknown keyword 'seed'; did you mean 'world_seed'?"),
    ({"name": "hrad"}, "no such choice; did you mean 'hard'?"),
    ({"split": "tset"}, "split is 'tset', no such choice; did you mean 'test'?"),
    ({"split": 1}, "split is 1, no such choice; known: train, test"),
    ({"world_seed": -1}, "world_seed is -1, expected an integer >= 0"),
    ({"world_seed": True}, "world_seed is True, expected an integer >= 0"),
    ({"world_seed": 1.0}, "world_seed is 1.0, expected an integer >= 0"),
    ({"features": 1}, "features is 1, expected True or False"),
    ({"arms": 1}, "world.arms is 1, expected int >= 2"),
    ({"arms": 8}, "world.arms is 8, expected more than"),
    ({"common": 1.5}, "world.common is 1.5, expected float <= 1.0"),
    ({"bias_sd": float("nan")}, "world.bias_sd is nan, expected a finite number"),
    ({"solve_rates": "smollm2_arithmetic"}, "did you mean 'smollm2_135m_arithmetic'?"),
    ({"render_mode": "human"}, "render_mode is 'human', expected None: there is nothing to draw"),
]


@pytest.mark.filterwarnings("ignore:.*render_mode")  # gymnasium's own, before the environment is asked
@pytest.mark.parametrize("make", [gym.make, gym.make_vec])
@pytest.mark.parametrize(("settings", "message"), BAD_KEYWORDS)
def test_bad_keyword_is_one_line_with_the_nearest_name(make, settings, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        make(ENV, **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("settings", "message"), [
    ({"autoreset_mode": "SameStp"}, "autoreset_mode is 'SameStp', no such choice; did you mean 'SameStep'?"),
    ({"autoreset_mode": []}, "autoreset_mode is [], no such choice; known: NextStep, SameStep, Disabled"),
    ({"num_envs": 0}, "num_envs is 0, expected an integer >= 1"),
    ({"num_env": 3}, "unknown keyword 'num_env'; did you mean 'num_envs'?"),
])
def test_bad_keyword_of_the_vector_form(settings, message):
    with pytest.raises(InputError, match=re.escape(message)):
        gym.make_vec(ENV, **settings)


def test_too_few_recorded_prompts_for_a_test_split(tmp_path):
    path = tmp_path / "two.csv"
    path.write_text("prompt_id,successes,attempts\n1,1,2\n2,0,2\n")
    with pytest.raises(InputError, match="2 prompts, expected at least 3"):
        gym.make(ENV, split="test", solve_rates=str(path))


@pytest.mark.parametrize("action", [9, -1, 0.0, "a", None, True, np.array([1]), [0, 1]])
def test_bad_action(action):
    env = small().unwrapped
    env.reset(seed=0)
    with pytest.raises(InputError, match=r"action is .*, expected an integer in 0 \.\. 8") as caught:
        env.step(action)
    assert "\n" not in str(caught.value)
    env.step(np.int64(8))  # the episode is still open


@pytest.mark.parametrize("actions", [3, [0] * 5, [0.0] * 6, [0] * 5 + [9], [0] * 5 + [-1], [True] * 6,
                                     np.zeros((6, 1), dtype=int), [[0], [1, 2]], None])
def test_bad_actions_of_the_vector_form(actions):
    envs = small_vec()
    envs.reset(seed=0)
    with pytest.raises(InputError, match=r"actions is .*, expected integers \(6,\) in 0 \.\. 8") as caught:
        envs.step(actions)
    assert "\n" not in str(caught.value)
    envs.step([0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize(("options", "message"), [
    ({"promt": 1}, "unknown reset option 'promt'; did you mean 'prompt'?"),
    ({"prompt": 12}, "option 'prompt' is 12, expected an integer in 0 .. 11"),
    ({"prompt": -1}, "option 'prompt' is -1, expected an integer in 0 .. 11"),
    ({"prompt": 1.0}, "option 'prompt' is 1.0, expected an integer in 0 .. 11"),
])
def test_bad_reset_option(options, message):
    for env in (small(), small_vec()):
        with pytest.raises(InputError, match=re.escape(message)):
            env.reset(options=options)


@pytest.mark.parametrize(("options", "message"), [
    ({"prompt": [1, 2]}, "option 'prompt' is [1 2], expected integers (6,) in 0 .. 11"),
    ({"reset_mask": np.zeros(6, dtype=bool)}, "option 'reset_mask' is "),
    ({"reset_mask": np.ones(5, dtype=bool)}, "option 'reset_mask' is "),
    ({"reset_mask": [True] * 6}, "option 'reset_mask' is "),
])
def test_bad_reset_option_of_the_vector_form(options, message):
    envs = small_vec()
    envs.reset(seed=0)
    with pytest.raises(InputError, match=re.escape(message)):
        envs.reset(options=options)
