import gymnasium as gym
import numpy as np
from scipy.special import softmax

from fade_sim.advantage import advantages, make

ENV, rng, rule = "fade_sim.env:FadeBandit-v0", np.random.default_rng(0), make("dr_grpo")
envs = gym.make_vec(ENV, num_envs=256, features=False)  # 16 prompts, 16 rollouts of each
train, test = envs.unwrapped.world, gym.make(ENV, split="test").unwrapped.world
head = np.zeros((train.token.shape[2], train.hidden.shape[2]))  # W, shared by all prompts


def logits(world, prompts):
    return world.bias[prompts] + np.einsum("nkv,vd,nkd->nk", world.token[prompts], head, world.hidden[prompts])


def solve_rate(world):  # exact: the policy's mass on success arms
    return (softmax(logits(world, slice(None)), axis=1) * world.success).sum(axis=1).mean()


print(f"before: train {solve_rate(train):.3f}, held out {solve_rate(test):.3f}")
for _ in range(300):
    prompts, _ = envs.reset(options={"prompt": np.repeat(rng.integers(len(train.bias), size=16), 16)})
    z = logits(train, prompts)
    arms = (z + rng.gumbel(size=z.shape)).argmax(axis=1)  # draws from softmax(z)
    rewards = envs.step(arms)[1]
    score = np.eye(z.shape[1])[arms] - softmax(z, axis=1)  # d log pi(arm) / dz
    weighted = advantages(rewards, prompts, rule)[:, None] * score
    head += 10.0 * np.einsum("nk,nkv,nkd->vd", weighted, train.token[prompts], train.hidden[prompts]) / len(arms)
print(f"after:  train {solve_rate(train):.3f}, held out {solve_rate(test):.3f}")
