"""The training loop, top to bottom: collect rollouts, update the controller, weigh, learn, record, save.

It knows no rule: each step's weights are a table from the advantage core. Every process runs this
same code on its share of the groups; whatever decides anything (controller, table, norms, metrics)
is computed from the groups of all processes, so one process and many take the same steps.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from fade_sim.advantage import BatchStats, controller
from fade_sim.errors import InputError
from fade_sim.store import plain
from llm import probes
from llm.batch import Rollouts, concat, micro_batches
from llm.config import Settings
from llm.data import Split, prompt_of
from llm.evaluate import evaluate
from llm.loss import Totals, token_loss, token_weights
from llm.optimiser import Optimiser
from llm.parallel import Ranks
from llm.policy import Policy
from llm.rollout import Roller
from llm.weigh import weigh

_STREAM = 0x7A17  # random numbers of training rollouts, apart from those of evaluation


@dataclass(frozen=True)
class Batch:
    """The groups of one step."""

    rollouts: Rollouts  # this process's share (never empty: see `counted`)
    kept: np.ndarray  # (B,) numbers of the groups that are learned from, all processes
    # (D, 5) of every group drawn, all processes: number, successes, entropy sum, tokens, rollouts with a reward
    drawn: np.ndarray

    @property
    def counted(self) -> torch.Tensor:
        """(N,) True where a rollout is learned from; a process without a kept group holds one that is not."""
        return torch.isin(self.rollouts.group, torch.from_numpy(self.kept)) & self.rollouts.valid

    @property
    def stats(self) -> BatchStats:
        """Successes and sizes of the kept groups, what could not be judged left out."""
        c, n = self.drawn[np.isin(self.drawn[:, 0], self.kept)][:, [1, 4]].astype(np.int64).T
        return BatchStats(c[n > 0], n[n > 0])


class Trainer:
    """A run: settings, policy, optimiser and the state that a checkpoint holds."""

    def __init__(self, settings: Settings, policy: Policy, roller: Roller, split: Split, ranks: Ranks,
                 reference: Policy | None = None):
        self.settings, self.train, self.policy, self.roller = settings, settings.train, policy, roller
        self.split, self.ranks, self.reference = split, ranks, reference
        self.optimiser = Optimiser(policy.trainable(), self.train, settings.model)
        self.controller = settings.contender.controller
        self.step = 0  # updates taken
        self.cursor = 0  # groups drawn: which prompts and random numbers come next
        self.queue: deque[Batch] = deque()  # sampled, not yet learned from: train.staleness of them
        self.first_head = probes.head_weight(policy)

    def run(self, record: Callable[[dict], None], save: Callable[[], None]) -> None:
        """Train to the last step. record(row) after every step; save() when a checkpoint is due."""
        every = self.settings.parallel.save_every
        if self.step == 0:
            record(plain({"step": 0, **self.evaluate()}))
        while self.step < self.train.steps:
            record(self.advance())
            if every and self.step % every == 0 and self.step < self.train.steps:
                save()

    def advance(self) -> dict:
        """One step; returns its row of metrics."""
        while len(self.queue) <= self.train.staleness and self.step + len(self.queue) < self.train.steps:
            self.queue.append(self.collect())
        batch = self.queue.popleft()
        table, advantage = self.weigh(batch)
        due = self.step + 1 == self.train.steps or (self.step + 1) % self.train.record == 0
        probe = probes.Probe(self.policy, batch, self.settings, self.ranks) if due or self.step == 0 else None
        learned = self.learn(batch, advantage)
        row = {"step": self.step + 1, **probes.step_row(self, batch, table, advantage, learned)}
        self.step += 1
        if probe is not None:
            row |= probe.row(self, table)
        if due:
            row |= self.evaluate()
        return plain(row)

    # --- collect ---------------------------------------------------------------------------------------

    def collect(self) -> Batch:
        """Draw B groups; under dynamic sampling replace uniform ones, and count them all."""
        B = self.train.prompts
        parts, tables = [], []
        while True:
            part = self.sample(list(range(self.cursor, self.cursor + B)))
            if self.cursor == 0:
                self.check_agreement(part)
            self.cursor += B
            parts.append(part)
            tables += self.ranks.gather(group_table(part))
            drawn = np.concatenate(tables)
            drawn = drawn[np.argsort(drawn[:, 0])]
            mixed = drawn[(drawn[:, 1] > 0) & (drawn[:, 1] < drawn[:, 4]), 0]
            if not self.train.dynamic_sampling or len(mixed) >= B or len(drawn) >= self.train.max_rounds * B:
                break
        if self.train.dynamic_sampling:
            uniform = drawn[~np.isin(drawn[:, 0], mixed), 0]
            kept = np.sort(np.concatenate([mixed, uniform])[:B]).astype(np.int64)
        else:
            kept = drawn[:, 0].astype(np.int64)
        mine = concat(parts)
        keep = torch.isin(mine.group, torch.from_numpy(kept))
        return Batch(mine.select(keep) if keep.any() else spare(mine), kept, drawn)

    def sample(self, groups: list[int]) -> Rollouts:
        """This process's share of the groups. All sample equally many, so that sharded calls match."""
        r, size = self.ranks.rank, self.ranks.size
        places = [r + i * size for i in range(-(-len(groups) // size))]
        mine = [groups[i % len(groups)] for i in places]
        index = [prompt_of(k, len(self.split.train), self.train.seed) for k in mine]
        out = self.roller.collect(self.policy, self.split.train, index, mine, self.train.group_size,
                                  [self.train.seed, _STREAM], self.step)
        if bool(out.entropy.isnan().any()):  # the engine does not measure it
            out = probes.with_entropy(self.policy, out, self.settings, self.ranks)
        own = sum(i < len(groups) for i in places)
        return out.select(slice(0, own * self.train.group_size)) if own else spare(out)

    def check_agreement(self, rollouts: Rollouts) -> None:
        """Sampler and trainer must mean the same policy: same temperature, same tokens, same weights."""
        drift = probes.sampler_ratio(self.policy, rollouts, self.settings)
        if not 0.99 <= drift <= 1.01:
            raise InputError(f"the sampler's log-probabilities are not the policy's at temperature "
                             f"{self.settings.rollout.temperature:g}: mean ratio {drift:.4f}, expected 1 within .01")

    # --- weigh -----------------------------------------------------------------------------------------

    def weigh(self, batch: Batch) -> tuple[np.ndarray, torch.Tensor]:
        """(table of this step (G+1, 2), advantage of each of this process's rollouts (N,)).

        The controller sees every group that was drawn, before any filter and over all processes.
        """
        G, stats = self.train.group_size, batch.stats
        if not batch.drawn[:, 4].any() or not len(stats.sizes):
            raise InputError("no rollout of this step could be judged: nothing can be learned from it")
        solve_rate = float(batch.drawn[:, 1].sum() / batch.drawn[:, 4].sum())
        entropy = float(batch.drawn[:, 2].sum() / batch.drawn[:, 3].sum())
        self.controller = controller.update(self.controller, solve_rate, entropy)
        rollouts = batch.rollouts
        advantage, table, self.controller = weigh(
            self.settings.contender.method, self.controller, G, stats, rollouts.reward.numpy(),
            rollouts.group.numpy(), batch.counted.numpy())
        return table, torch.from_numpy(advantage)

    # --- learn -----------------------------------------------------------------------------------------

    def learn(self, batch: Batch, advantage: torch.Tensor) -> "probes.Learned":
        """train.epochs passes over the batch, one optimiser step each."""
        s, rollouts = self.settings, batch.rollouts
        active = batch.counted & (rollouts.finished | (not s.loss.mask_truncated))
        length = rollouts.length * active
        totals = Totals(*(int(v) for v in self.ranks.sum(
            [length.sum(), (length > 0).sum(), batch.counted.sum()])))
        weight = token_weights(length, totals, s.loss.denominator, s.loss.constant_length or s.rollout.max_tokens)
        weight = weight * active
        pieces = micro_batches(len(rollouts), s.parallel.micro_batch, self.ranks)
        on_policy = bool((rollouts.born == self.step).all())
        old = [None if on_policy else rollouts.select(rows) for rows, _ in pieces]
        old = [None if part is None else part.logprob[part.answer] for part in old]
        learned = probes.Learned()
        for epoch in range(self.train.epochs):
            for i, (rows, real) in enumerate(pieces):
                learned.add(*self.backward(rollouts, rows, old, i, advantage, weight if real else 0 * weight), epoch)
            learned.grad_norm.append(self.optimiser.step(self.ranks))
        return learned

    def backward(self, rollouts: Rollouts, rows: slice, old: list, i: int, advantage, weight) -> tuple:
        """Gradient of one micro-batch, added to the others; returns sums over its tokens."""
        s = self.settings
        part = rollouts.select(rows).to(self.policy.device)
        scores = self.policy.score(part, s.rollout.temperature, s.parallel.chunk,
                                   entropy_grad=bool(s.loss.entropy_coef))
        behaviour = old[i]  # None: the policy itself, ratio exactly 1
        if behaviour is None and self.train.epochs > 1:
            old[i] = scores.logprob.detach()  # what later epochs are compared with
        row = torch.arange(len(part), device=part.ids.device).repeat_interleave(part.length)
        reference = None
        if self.reference is not None:
            with torch.no_grad():
                reference = self.reference.score(part, s.rollout.temperature, s.parallel.chunk).logprob
        tokens = token_loss(scores.logprob, None if behaviour is None else behaviour.to(scores.logprob.device),
                            advantage[rows].to(part.ids.device), row, self.train, s.loss,
                            reference=reference, entropy=scores.entropy)
        share = weight[rows].to(part.ids.device)[row]
        loss = (share * tokens.loss).sum()
        (loss * self.ranks.size).backward()  # sharded gradients are averaged over processes
        return probes.token_sums(loss, tokens, share)

    # --- record ----------------------------------------------------------------------------------------

    def evaluate(self) -> dict:
        """pass@k of the training, held-out and held-out-skill problems."""
        return {"eval": evaluate(self.policy, self.roller, self.split.evaluation, self.settings.data, self.ranks,
                                 self.train.seed)}


def spare(rollouts: Rollouts) -> Rollouts:
    """One rollout of no group: a process without work of its own still takes part in sharded calls."""
    one = rollouts.select(slice(0, 1))
    return replace(one, group=torch.full_like(one.group, -1))


def group_table(rollouts: Rollouts) -> np.ndarray:
    """(groups, 5) of each group among these rollouts but spare ones, see `Batch.drawn`."""
    rollouts = rollouts.select(rollouts.group >= 0)
    groups, at = np.unique(rollouts.group.numpy(), return_inverse=True)
    columns = (rollouts.reward.nan_to_num(), rollouts.entropy.double().sum(dim=1), rollouts.length, rollouts.valid)
    return np.stack([groups, *(np.bincount(at, weights=c.double().numpy()) for c in columns)], axis=1)
