"""Lambda of a simulated run over its steps, exact: how near stale rollouts are to making its update unstable.

The theory (`theory.stability`) is about the shared head; what each prompt's own logits feed back is left
out, and so is the importance ratio where there is one.
"""

import numpy as np

from fade_sim.advantage import make
from fade_sim.errors import InputError
from fade_sim.sim import make_world
from fade_sim.sim.reference import policy
from fade_sim.sim.run import _Replica, record_steps
from fade_sim.theory import masses, stability_number


def lambda_trace(regime, contenders, seeds: int, records: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """(steps (R,), Lambda (rules, seeds, R)) of a `config.Regime`: its first seeds run again, with about R stops.

    Lambda = lr * staleness * lambda_max(E_x[(m_F - m_S)(x) F_x]) under the policy and the weights of each
    stop, x over the training prompts. 0 where failures nowhere outweigh successes, or rollouts are fresh.
    Raises InputError on a linear policy and on a verifier that errs: neither is covered.
    """
    train, world = regime.train, regime.world
    if world.policy == "linear" or world.false_negative or world.false_positive:
        raise InputError("the exact Lambda needs the bilinear policy and a verifier without errors")
    steps = record_steps(train.steps, -(-train.steps // records))
    out = np.zeros((len(contenders), seeds, len(steps)))
    for j in range(seeds):
        arrays = make_world(world, train.seed + j)
        for i, contender in enumerate(contenders):
            run = _Replica(train, contender, arrays, train.seed + j)
            for r, step in enumerate(steps):
                run.advance(int(step), lambda done: None)
                out[i, j, r] = stability_number(train.lr, train.staleness, top_eigenvalue(arrays, run.state))
    return steps, out


def top_eigenvalue(world, state) -> float:
    """Largest eigenvalue of E_x[(m_F - m_S)(x) F_x] over the head, not below 0."""
    n, table = np.arange(world.n_train), state.table
    pi = policy(world, n, state.head, state.theta)
    p = np.clip((pi * world.success[n]).sum(axis=1), 0.0, 1.0)
    m_S, m_F = masses(make("table", weights=table.tolist()), len(table) - 1, p)
    score = np.einsum("nkv,nkd->nkvd", world.token[n], world.hidden[n]).reshape(*pi.shape, -1)
    score = score - np.einsum("nk,nkD->nD", pi, score)[:, None]
    weight = ((m_F - m_S)[:, None] * pi).reshape(-1, 1)
    rows = score.reshape(-1, score.shape[-1])
    return max(float(np.linalg.eigvalsh(rows.T @ (weight * rows))[-1]) / len(n), 0.0)
