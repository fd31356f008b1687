"""Gymnasium environment `FadeBandit-v0`: the synthetic world as a one-step contextual bandit.

    env = gymnasium.make("fade_sim.env:FadeBandit-v0")                      # one prompt at a time
    envs = gymnasium.make_vec("fade_sim.env:FadeBandit-v0", num_envs=256)   # arrays, no loop over prompts

An observation is the index of a prompt, drawn uniformly from the split; an action is one of its K arms;
the reward is 1.0 for a success arm and 0.0 for any other, unless the world's verifier errs
(`false_negative`, `false_positive`); every episode is one step. The observation that ends an episode is
the prompt it began with. Randomness comes from the environment's own generator alone: `reset(seed=)` fixes
the prompts and the errors, `world_seed` fixes the world.

Keyword arguments, of both forms:
    split        "train" or "test" (held-out prompts, which share skills with the training prompts)
    world_seed   the world drawn, a non-negative integer; the same one as the simulator's seed
    features     whether `info` carries the prompt's features
    name         a world of `config.WORLDS`, and any other field of `config.World` to override it

`reset` returns, per prompt, what a policy with one head W (V, d) for all prompts needs, its logits being
z_a = bias_a + token_a^T W hidden_a; the arrays are copies, the caller's to keep:
    info["hidden"] (K, d)   info["token"] (K, V)   info["bias"] (K,)
    info["solve_rate"]      chance of a success at W = 0
(policy="linear": hidden is (1, d), token (0, 0), W (d, K), and z = bias + hidden[0] W.)
The same arrays for all prompts of the split, read-only and indexed by observation, are
`env.unwrapped.world`; `world.success` (P, K) gives the exact solve rate of any policy.
`reset(options={"prompt": i})` asks for a prompt instead of drawing one: a group of rollouts of one prompt.
"""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from fade_sim import config, recordings
from fade_sim.errors import InputError, nearest
from fade_sim.sim.world import WorldArrays, make_world

ID = "FadeBandit-v0"
_OWN = ("split", "world_seed", "features")


class FadeBandit(gym.Env):
    """One prompt at a time. See the module for keyword arguments and `info`."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, *, split: str = "train", world_seed: int = 0, features: bool = True, render_mode: None = None,
                 **world):
        self.settings, self.world = _load(_OWN, split, world_seed, features, render_mode, world)
        self.solve_rate = _solve_rate(self.world)  # (P,) at W = 0
        self.features = features
        n_prompts, n_arms = self.world.bias.shape
        self.observation_space = spaces.Discrete(n_prompts)
        self.action_space = spaces.Discrete(n_arms)
        self._prompt: int | None = None  # None: no episode is open

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """(prompt, info of the prompt). options: {"prompt": i} asks for prompt i."""
        super().reset(seed=seed)
        prompt = _options(options, ("prompt",)).get("prompt")
        n_prompts = int(self.observation_space.n)
        if prompt is None:
            prompt = self.np_random.integers(n_prompts)
        self._prompt = int(_indices(prompt, (), n_prompts, "option 'prompt'"))
        return self._prompt, _features(self, self._prompt)

    def step(self, action):
        """(prompt, reward 1.0 or 0.0, True, False, {})."""
        if self._prompt is None:
            raise ResetNeeded(f"{ID}: an episode is one step: call reset() before each step()")
        prompt, arm = self._prompt, int(_indices(action, (), int(self.action_space.n), "action"))
        self._prompt = None
        return prompt, float(_verify(self.world, self.world.success[prompt, arm], self.np_random)), True, False, {}


class FadeBanditVector(VectorEnv):
    """num_envs prompts at a time, as arrays. See the module for keyword arguments and `info`.

    autoreset_mode (an AutoresetMode or its value) says when the next prompts are drawn:
        "SameStep" (default)  in the step that ends an episode: every step is a rollout, of the prompts
                              returned just before; what it returns are the next ones, the old are in
                              info["final_obs"]
        "NextStep"            in the step after it, which ignores its actions and has reward 0 and
                              terminated False (Gymnasium's default for sub-environments in a loop): do not
                              learn from those steps
        "Disabled"            by reset(), which every step then needs; options={"reset_mask": (n,) of bool}
                              resets a part
    `reset(options={"prompt": i or (n,)})` asks for prompts. One generator serves all of them.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, num_envs: int = 1, *, autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
                 split: str = "train", world_seed: int = 0, features: bool = True, render_mode: None = None, **world):
        own = (*_OWN, "num_envs", "autoreset_mode")
        self.settings, self.world = _load(own, split, world_seed, features, render_mode, world)
        self.solve_rate = _solve_rate(self.world)  # (P,) at W = 0
        self.features = features
        self.num_envs = _integer(num_envs, "num_envs", 1)
        modes = [mode.value for mode in AutoresetMode]
        mode = autoreset_mode.value if isinstance(autoreset_mode, AutoresetMode) else autoreset_mode
        if mode not in modes:
            raise InputError(f"{ID}: autoreset_mode is {autoreset_mode!r}, no such choice{nearest(mode, modes)}")
        self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode(mode)}
        n_prompts, n_arms = self.world.bias.shape
        self.single_observation_space = spaces.Discrete(n_prompts)
        self.single_action_space = spaces.Discrete(n_arms)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._prompt: np.ndarray | None = None  # (n,) int64
        self._done = np.zeros(self.num_envs, dtype=bool)  # (n,) episode over, next prompt not drawn yet

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """(prompts (n,), info). options: "prompt", an integer or (n,); "reset_mask", (n,) of bool."""
        super().reset(seed=seed)
        options = _options(options, ("prompt", "reset_mask"))
        mask = options.get("reset_mask")
        if mask is None:
            mask = np.ones(self.num_envs, dtype=bool)
        elif self._prompt is None:
            raise ResetNeeded(f"{ID}: the first reset() takes no 'reset_mask'")
        elif not isinstance(mask, np.ndarray) or mask.dtype != bool or mask.shape != (self.num_envs,) or not mask.any():
            raise InputError(f"{ID}: option 'reset_mask' is {mask!r}, expected a bool array ({self.num_envs},), "
                             "not all False")
        prompt = options.get("prompt")
        if prompt is not None:
            shape = np.shape(prompt) and (self.num_envs,)
            prompt = _indices(prompt, shape, int(self.single_observation_space.n), "option 'prompt'")
            prompt = np.broadcast_to(prompt, self.num_envs)[mask]
        self._begin(mask, prompt)
        return self._prompt.copy(), self._info(mask)

    def step(self, actions):
        """(prompts, rewards, terminations, truncations), each (n,), and info."""
        if self._prompt is None:
            raise ResetNeeded(f"{ID}: call reset() before step()")
        arm = _indices(actions, (self.num_envs,), int(self.single_action_space.n), "actions")
        mode = self.metadata["autoreset_mode"]
        if mode == AutoresetMode.DISABLED and self._done.any():
            raise ResetNeeded(f"{ID}: an episode is one step: reset {self._done.sum()} finished episodes before step()")
        waiting = self._done  # only ever some in the mode "NextStep": they reset now and ignore their action
        terminated = ~waiting
        reward = np.where(terminated, _verify(self.world, self.world.success[self._prompt, arm], self.np_random), 0.0)
        info: dict[str, Any] = {}
        if mode == AutoresetMode.SAME_STEP:
            info = {"final_obs": self._prompt.astype(object), "_final_obs": terminated.copy(),
                    "final_info": {}, "_final_info": terminated.copy()}
            waiting = terminated
        self._done = terminated.copy()
        if waiting.any():
            self._begin(waiting)
            info |= self._info(waiting)
        return self._prompt.copy(), reward, terminated, np.zeros(self.num_envs, dtype=bool), info

    def _begin(self, mask: np.ndarray, prompt: np.ndarray | None = None) -> None:
        """Open an episode where `mask`: of the prompts given, or of new draws."""
        if prompt is None:
            prompt = self.np_random.integers(self.single_observation_space.n, size=int(mask.sum()))
        if self._prompt is None:
            self._prompt = np.zeros(self.num_envs, dtype=np.int64)
        self._prompt[mask] = prompt
        self._done[mask] = False

    def _info(self, mask: np.ndarray) -> dict[str, Any]:
        """Features of the prompts just drawn, in Gymnasium's form: zero and masked where there was no reset."""
        info: dict[str, Any] = {}
        for key, value in _features(self, self._prompt).items():
            value[~mask] = 0
            info |= {key: value, f"_{key}": mask.copy()}
        return info


def _load(own: tuple, split, world_seed, features, render_mode, world: dict) -> tuple[config.World, WorldArrays]:
    """Check every keyword; draw the world and keep the prompts of the split, read-only."""
    fields = config.World.__struct_fields__
    for key in world:
        if key not in fields:
            raise InputError(f"{ID}: unknown keyword {key!r}{nearest(key, (*own, *fields))}")
    if render_mode is not None:
        raise InputError(f"{ID}: render_mode is {render_mode!r}, expected None: there is nothing to draw")
    if split not in ("train", "test"):
        raise InputError(f"{ID}: split is {split!r}, no such choice{nearest(split, ('train', 'test'))}")
    if not isinstance(features, bool):
        raise InputError(f"{ID}: features is {features!r}, expected True or False")
    seed = _integer(world_seed, "world_seed", 0)
    plain = {key: value.item() if isinstance(value, np.generic) else value for key, value in world.items()}
    settings = config.resolve({"world": plain}, {}, ID).regimes[0].world
    rates = recordings.initial_solve_rates(settings.solve_rates) if settings.solve_rates else None
    whole = make_world(settings, seed, rates)
    n_train = whole.n_train
    rows = slice(n_train) if split == "train" else slice(n_train, None)
    names = ("hidden", "token", "bias", "success", "mode", "hidden_t", "token_t")
    arrays = {name: getattr(whole, name)[rows] for name in names}
    for array in arrays.values():
        array.flags.writeable = False
    return settings, whole._replace(**arrays, n_train=n_train if split == "train" else 0)


def _solve_rate(world: WorldArrays) -> np.ndarray:
    """Solve rate of each prompt at W = 0, (P,): softmax of the bias, on the success arms."""
    pi = np.exp(world.bias - world.bias.max(axis=1, keepdims=True))
    rate = (pi * world.success).sum(axis=1) / pi.sum(axis=1)
    rate.flags.writeable = False
    return rate


def _verify(world: WorldArrays, success, rng: np.random.Generator):
    """`success` as the verifier sees it. Draws nothing where the verifier cannot err."""
    if world.noise == (0, 0):
        return success
    u = rng.random(np.shape(success))
    return np.where(success, u >= world.noise[0], u < world.noise[1])


def _features(env: FadeBandit | FadeBanditVector, prompt) -> dict[str, Any]:
    """What `info` says of a prompt or of (n,) prompts. Copies: two calls never share memory."""
    if not env.features:
        return {}
    arrays = {name: getattr(env.world, name).take(prompt, axis=0) for name in ("hidden", "token", "bias")}
    rate = env.solve_rate.take(prompt)
    return {**arrays, "solve_rate": rate if np.ndim(prompt) else float(rate)}


def _integer(value, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{ID}: {name} is {value!r}, expected an integer >= {least}")
    return int(value)


def _indices(value, shape: tuple, n: int, name: str) -> np.ndarray:
    """`value` as integers of this shape in 0 .. n-1."""
    try:
        array = np.asarray(value)
    except ValueError:  # ragged
        array = np.empty(0)
    if array.dtype.kind not in "iu" or array.shape != shape or (array.size and (array.min() < 0 or array.max() >= n)):
        kind = "an integer" if shape == () else f"integers ({shape[0]},)"
        said = " ".join(np.array2string(array, threshold=8).split()) if array.ndim and array.size else repr(value)
        raise InputError(f"{ID}: {name} is {said}, expected {kind} in 0 .. {n - 1}")
    return array


def _options(options: dict[str, Any] | None, known: tuple) -> dict[str, Any]:
    for key in options or {}:
        if key not in known:
            raise InputError(f"{ID}: unknown reset option {key!r}{nearest(key, known)}")
    return options or {}


gym.register(ID, entry_point="fade_sim.env:FadeBandit", vector_entry_point="fade_sim.env:FadeBanditVector")
