"""The project's trainer on the problems of a job, as its own process; the contender is contenders/trl_trainer.py.

`python -m benchmarks.trainer_run time JOB.json` prints times and memory as a last line of JSON,
`... check JOB.json` compares weights, loss and gradient with those of the batch that TRL dumped.
"""

import json
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from benchmarks.peak import peak_bytes


def make_trainer(job: dict):
    """A trainer at the settings of the job, dr_grpo and on-policy, without costly probes but for step 1."""
    from llm import config, jobs
    from llm.data import problems
    from llm.parallel import Ranks
    from llm.trainer import Trainer

    steps = job["warm"] + job["steps"] + 1  # the last one takes probes: it is not reached
    settings = config.load("tiny", {
        "method.name": "dr_grpo", "model.path": job["model"], "model.lr": job["lr"], "train.steps": steps,
        "train.record": steps, "train.prompts": job["prompts"], "train.group_size": job["group_size"],
        "train.seed": job["seed"], "rollout.max_tokens": job["max_tokens"], "parallel.save_every": 0,
        "probe.entropy_slope": False})
    policy, tokenizer, _ = jobs._policies(settings, Ranks())
    return Trainer(settings, policy, jobs._roller(settings, policy, tokenizer), problems(settings.data), Ranks())


def visited(trainer, groups: int) -> list[tuple[str, str]]:
    """(prompt, answer) of the first groups of a run."""
    from llm.data import prompt_of

    train = trainer.split.train
    places = (prompt_of(k, len(train), trainer.train.seed) for k in range(groups))
    return [(train[i].prompt, train[i].answer) for i in places]


def timed(job: dict) -> dict:
    """CPU and wall time of each step after the warm ones, its line of metrics included; peak memory."""
    from llm.runfolder import Metrics

    trainer = make_trainer(job)
    clock, solved, before = [], [], peak_bytes()
    with tempfile.TemporaryDirectory() as folder:
        metrics = Metrics(Path(folder), 0)
        for _ in range(job["warm"] + job["steps"]):
            row = trainer.advance()
            metrics.write(row)
            clock.append((time.process_time(), time.perf_counter()))
            solved.append(row["solve_rate"])
    took = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(clock)][job["warm"] - 1 :]
    return {"cpu": [c for c, _ in took], "wall": [w for _, w in took], "peak": peak_bytes(), "before": before,
            "solved": solved}


def compared(job: dict) -> list[tuple[str, bool, str]]:
    """(what, whether it holds, what was found): weights, loss and gradient on TRL's tokens and rewards."""
    import numpy as np
    import torch

    from llm.batch import Rollouts
    from llm.trainer import Batch, group_table

    theirs = torch.load(job["dump"])
    got, trainer = theirs["batch"], make_trainer(job)
    prompt, answer = got["prompt_mask"].bool(), got["completion_mask"].bool()
    ids = torch.cat([got["prompt_ids"], got["completion_ids"]], dim=1)
    n, G = len(ids), job["group_size"]
    zero = torch.zeros(ids.shape)
    rollouts = Rollouts(
        ids=ids, prompt=torch.cat([prompt, torch.zeros_like(answer)], 1), logprob=zero, entropy=zero,
        answer=torch.cat([torch.zeros_like(prompt), answer], 1), group=torch.arange(n) // G,
        problem=torch.zeros(n, dtype=torch.long), finished=torch.ones(n, dtype=torch.bool),
        reward=torch.tensor(theirs["reward"], dtype=torch.float64), born=torch.zeros(n, dtype=torch.long))
    batch = Batch(rollouts, np.arange(n // G), group_table(rollouts))
    texts = [trainer.roller.tokenizer.decode(row[mask]) for row, mask in zip(ids[::G], rollouts.prompt[::G],
                                                                             strict=True)]
    _, advantage = trainer.weigh(batch)
    parameters = trainer.policy.trainable()
    trainer.optimiser.step = lambda ranks: 0.0  # the gradients stay, to be read
    learned = trainer.learn(batch, advantage)
    ours = torch.cat([p.grad.flatten() for p in parameters.values()])
    gradient = torch.cat([theirs["gradient"][name].flatten() for name in parameters])
    size, off = float(gradient.norm()), float((ours - gradient).norm())
    furthest = float((advantage - got["advantages"].double()).abs().max())
    loss = float(learned.sums[0])
    return [
        ("the prompts that TRL took are those of this trainer",
         texts == [p for p, _ in visited(trainer, n // G)], f"{len(texts)} prompts"),
        ("advantages of TRL, scale_rewards none = dr_grpo of the core",
         furthest == 0.0 and float(advantage.abs().max()) > 0, f"largest difference {furthest:g}, {n} rollouts, "
         f"{sum(theirs['reward']):g} of them successes"),
        ("loss of TRL = loss of this trainer, on TRL's tokens", abs(loss - theirs["loss"]) < 1e-6,
         f"{theirs['loss']:.7f} and {loss:.7f}"),
        ("gradient of TRL = gradient of this trainer, on TRL's tokens", off < 1e-4 * size and size > 0,
         f"relative difference {off / max(size, 1e-30):.1e}, norm {size:.3g}"),
    ]


def main(what: str, path: str) -> None:
    import torch

    torch.set_num_threads(1)
    job = json.loads(Path(path).read_text())
    if what == "problems":
        print(json.dumps(visited(make_trainer(job), job["prompts"] * (job["warm"] + job["steps"]))))
    else:
        print(json.dumps({"time": timed, "check": compared}[what](job)))


if __name__ == "__main__":
    main(*sys.argv[1:])
