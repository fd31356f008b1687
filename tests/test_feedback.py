"""Lambda over the steps of a simulated run, against the experiment's own at the start and its definition."""

import numpy as np
import pytest

from fade_sim import config, feedback
from fade_sim.experiments.rank_theory import lambda_top

RAW = {"world": {"train_prompts": 12, "test_prompts": 1, "arms": 16, "hidden": 3, "token": 4},
       "train": {"steps": 30, "prompts": 4, "group_size": 4, "lr": 5.0, "staleness": 6, "seeds": 2},
       "compare": [{"name": "dr_grpo"}, {"name": "asym_delta", "delta": 0.3}, {"name": "asym_delta", "delta": 2.0}]}


def trace(**train):
    cfg = config.resolve({**RAW, "train": {**RAW["train"], **train}}, {})
    return feedback.lambda_trace(cfg.regimes[0], cfg.contenders, seeds=2, records=3)


def test_the_start_is_that_of_the_rank_experiment():
    """lr 5, lag 6: 30 times the eigenvalue that rank_theory computes from the rule's own masses."""
    steps, found = trace()
    assert steps.tolist() == [0, 10, 20, 30]
    assert found[1, :, 0] == pytest.approx(30 * lambda_top(RAW["world"], 0.3, 4, seeds=2), rel=1e-9)


def test_equal_masses_and_success_bias_feed_nothing_back():
    """dr_grpo has m_S = m_F, delta 2 has m_F < m_S: no positive eigenvalue at any step. Delta .3 has one at all."""
    _, found = trace()
    assert np.abs(found[0]).max() < 1e-12 and np.abs(found[2]).max() < 1e-12
    assert found[1].min() > 0 and np.abs(found[1, :, 1:] - found[1, :, :1]).max() > 1e-3


def test_fresh_rollouts_have_none():
    assert np.abs(trace(staleness=0)[1]).max() == 0.0


def test_what_is_not_covered_is_refused():
    cfg = config.resolve({**RAW, "world": {**RAW["world"], "false_negative": 0.1}}, {})
    with pytest.raises(ValueError, match="verifier without errors"):
        feedback.lambda_trace(cfg.regimes[0], cfg.contenders, seeds=1)
