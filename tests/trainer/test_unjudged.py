"""A rollout that could not be judged leaves its group: weights, averages, metrics, evaluation."""

import json
import shutil

import numpy as np
import pytest
import torch

from fade_sim.advantage import make, weight_table


def rollouts_of(rewards, groups):
    from llm.batch import Rollouts

    n = len(rewards)
    one = torch.ones(n, 1)
    return Rollouts(ids=one.long(), prompt=one.bool() & False, answer=one.bool(), logprob=0 * one, entropy=one,
                    group=torch.tensor(groups), problem=torch.zeros(n).long(), finished=one[:, 0].bool(),
                    reward=torch.tensor(rewards, dtype=torch.float64), born=torch.zeros(n).long())


def test_an_unjudged_rollout_leaves_its_group(make_trainer):
    """RWC-15: rewards [?, 1, 0, 1] give [0, 1/3, -2/3, 1/3]; as a failure the others would get [.5, -.5, .5]."""
    from llm.trainer import Batch, group_table

    trainer = make_trainer(**{"train.group_size": 4})
    r = rollouts_of([np.nan, 1, 0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1])
    drawn = group_table(r)
    assert drawn[:, [0, 1, 4]].tolist() == [[0, 2, 3], [1, 1, 4]]
    batch = Batch(r, np.array([0, 1]), drawn)
    table, advantage = trainer.weigh(batch)
    assert advantage.tolist() == pytest.approx([0, 1/3, -2/3, 1/3, 0.75, -0.25, -0.25, -0.25])
    assert table.tolist() == weight_table(make("dr_grpo"), 4).tolist()
    assert trainer.controller.phat == pytest.approx(0.5 + trainer.controller.rate * (3 / 7 - 0.5))
    assert batch.counted.tolist() == [False] + [True] * 7


def test_a_batch_without_a_judgement_stops_the_run(make_trainer):
    from llm.trainer import Batch, group_table

    trainer = make_trainer(**{"train.group_size": 2})
    r = rollouts_of([np.nan, np.nan], [0, 0])
    with pytest.raises(ValueError, match="no rollout of this step could be judged"):
        trainer.weigh(Batch(r, np.array([0]), group_table(r)))


def test_a_run_whose_judge_fails_now_and_then(make_trainer):
    """Counted, finite, and no token of an unjudged rollout carries a gradient."""
    trainer = make_trainer(**{"reward.name": "verifiers:now_and_then", "train.steps": 3, "probe.stability": False})
    rows = [trainer.advance() for _ in range(3)]
    assert sum(row["unscored"] for row in rows) > 0
    for row in rows:
        assert np.isfinite([row["loss"], row["grad_norm"], row["solve_rate"], row["advantage_abs"]]).all()
        assert row["groups_used"] <= row["groups_drawn"] and 0 <= row["solve_rate"] <= 1
    evaluated = trainer.evaluate()["eval"]["train"]["pass@1"]
    assert 0 <= evaluated["low"] <= evaluated["mean"] <= evaluated["high"] <= 1


def test_a_rule_of_one_group_size_learns_nothing_from_a_smaller_group(make_trainer, tmp_path):
    """A table of G = 4 says nothing of three rollouts: that group is left out, the other is not."""
    from llm.trainer import Batch, group_table

    (tmp_path / "mine.toml").write_text("[method]\nname = 'table'\n"
                                        "weights = [[0, 0], [1, -1], [1, -1], [1, -1], [0, 0]]\n")
    trainer = make_trainer(str(tmp_path / "mine.toml"), **{"train.group_size": 4})
    r = rollouts_of([np.nan, 1, 0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1])
    _, advantage = trainer.weigh(Batch(r, np.array([0, 1]), group_table(r)))
    assert advantage.tolist() == [0, 0, 0, 0, 1, -1, -1, -1]


def test_a_recording_leaves_out_what_could_not_be_judged(make_trainer):
    from llm.evaluate import record

    trainer = make_trainer(**{"reward.name": "verifiers:now_and_then"})
    rows = list(record(trainer.policy, trainer.roller, trainer.split.train, 8, 0))
    assert sum(len(row["rewards"]) for row in rows) < 8 * len(trainer.split.train)
    for row in rows:
        assert 0 < len(row["rewards"]) == len(row["texts"]) and set(row["rewards"]) <= {0, 1}
        finished = [text for text in row["texts"] if len(text) < 5]  # what was cut off is a failure, judged or not
        assert not any(text[:1] in ("1", "4", "7", "8") for text in finished)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_a_run_rewarded_by_programs(make_trainer, tmp_path):
    """Texts of the untrained model are programs: 12+3 runs and prints nothing, as expected; +* is no Python."""
    for name, first in (("train", 10), ("test", 50)):
        tests = {"tests": [{"input": "", "output": ""}]}
        rows = [{"prompt": f"{i}+1=", "answer": tests} for i in range(first, first + 4)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    trainer = make_trainer(**{
        "reward.name": "code", "reward.program": "text", "reward.cpu_seconds": 1.0, "reward.wall_seconds": 4.0,
        "data.task": "file", "data.train": str(tmp_path / "train.jsonl"), "data.test": str(tmp_path / "test.jsonl"),
        "data.eval_rollouts": 1, "data.eval_k": [1]})
    try:
        batch = trainer.collect()
        r = batch.rollouts
        texts = trainer.roller.decode(r.ids, r.answer)
        assert {0.0, 1.0} == set(r.reward.tolist()) and bool(r.valid.all())
        for text, reward, finished in zip(texts, r.reward.tolist(), r.finished.tolist(), strict=True):
            try:
                compile(text, "text", "exec")
                right = finished
            except SyntaxError:
                right = False
            assert reward == right or "**" in text, text  # a power may be too large
        row = trainer.advance()
        assert row["unscored"] == 0 and np.isfinite(row["loss"])
        assert sum(trainer.roller.verifier.counts[k] for k in ("pass", "crash")) > 0
    finally:
        trainer.roller.verifier.close()
