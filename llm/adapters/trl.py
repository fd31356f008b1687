"""TRL's GRPOTrainer with a rule of this project in place of its advantages.

Overrides private methods of TRL 1.16, and therefore refuses any other minor version. Everything else (sampling,
loss, optimiser, processes, logging) is TRL's.
"""

import inspect
import json
import zlib
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from trl import GRPOConfig, GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing

from fade_sim.errors import InputError
from llm.adapters import hazards
from llm.adapters.weights import Weights, flat, pass_row

SUPPORTED = "1.16"
STATE = "weights_state.json"  # beside a checkpoint
PREFIX = "weights/"  # of the metrics, in TRL's logs

if version("trl").split(".")[:2] != SUPPORTED.split("."):
    raise ImportError(f"llm.adapters.trl overrides private methods of TRL {SUPPORTED}, found {version('trl')}; "
                      f"pip install 'trl~={SUPPORTED}.0'")


class FadeGRPOTrainer(GRPOTrainer):
    """GRPOTrainer whose rollouts are weighed by `method`; everything else as in TRL.

    method: as in `llm.adapters.weights.Weights`: a name, the path of a TOML, a label or a table. Rewards must be
    0 or 1, None where a rollout cannot be judged. Raises InputError before the model is loaded on settings that
    would undo the rule (`llm.adapters.hazards.TRL`), and warns of those that only change the step.

    The controller moves once for each generated batch of training, by the rollouts of all processes, before
    that batch is weighed; evaluation does not move it. A rule that reads the entropy costs a forward pass without
    gradient over the batch, unless TRL itself makes one (old log-probabilities). The state is saved with every
    checkpoint and restored with it.
    """

    def __init__(self, model, reward_funcs=None, args: GRPOConfig | None = None, *rest, method, **kwargs):
        if args is None:
            raise InputError("TRL: args is missing, expected a GRPOConfig: by default TRL divides by the group's std; "
                             "use scale_rewards = 'none' and loss_type = 'dr_grpo'")
        self.weights = Weights(method, args.num_generations)
        sampling = {k: v for k, v in (args.generation_kwargs or {}).items() if k != "temperature"}  # they win in TRL
        said = hazards.refuse("TRL", hazards.TRL, vars(args) | sampling, self.weights)
        if args.process_index == 0:
            hazards.warn(said)
        self._generating = False  # True while TRL samples and scores a batch of training
        self._old_entropies: list[torch.Tensor] = []  # (B, T) of the passes that TRL itself made meanwhile
        self._scored: torch.Tensor | None = None  # (N, functions) rewards of all processes
        super().__init__(model, reward_funcs, args, *rest, **kwargs)

    # --- weigh -------------------------------------------------------------------------------------------

    def _calculate_rewards(self, inputs, *args, **kwargs):
        self._scored = super()._calculate_rewards(inputs, *args, **kwargs)
        self._check_rows(inputs)
        return self._scored

    def _generate_and_score_completions(self, inputs):
        training = self.model.training
        self._generating, self._old_entropies = training and self.weights.reads_entropy, []
        try:
            output = super()._generate_and_score_completions(inputs)
        finally:
            self._generating = False
        reward = self._rewards()
        size = self.num_generations if training else self.num_generations_eval
        if not training:
            self._log(flat(pass_row(*_counts(reward, size), size)), "eval")
            return output
        entropy, tokens = self._entropies(output) if self.weights.reads_entropy else (None, None)
        weighed = self.weights.step(reward, np.arange(len(reward)) // size, entropy, tokens)
        self._log(weighed.metrics, "train")
        mine, old = len(inputs), output["advantages"]
        first = self.accelerator.process_index * mine
        output["advantages"] = torch.from_numpy(weighed.advantages[first : first + mine]).to(old)
        logged = self._logs["advantages"]  # TRL has put its own there
        for _ in range(min(len(logged), len(reward))):
            logged.pop()
        logged.extend(weighed.advantages.tolist())
        return output

    def _rewards(self) -> np.ndarray:
        """(N,) weighted sum of the reward functions, all processes; NaN where none could judge."""
        each, shares = self._scored.cpu(), self.reward_weights.cpu()
        reward = (each * shares).nansum(dim=1)  # float32, as TRL sums it
        reward[each.isnan().all(dim=1)] = torch.nan
        bad = ~(reward.isnan() | (reward == 0) | (reward == 1))
        if bad.any():
            first = int(bad.nonzero()[0, 0])
            parts = " + ".join(f"{w:g} * {name} ({value:g})" for w, name, value in zip(
                shares.tolist(), self.reward_func_names, each[first].tolist(), strict=True))
            raise InputError(f"TRL: the reward of rollout {first} is {float(reward[first]):.9g} = {parts}, expected 0, "
                             "1 or None: rules are for verifiable rewards; use reward_weights with 1 for the verifier "
                             "and 0 for what is only logged")
        return reward.double().numpy()

    def _check_rows(self, inputs) -> None:
        """TRL takes num_generations rows in a row for one prompt: refuse a sampler that orders them otherwise."""
        try:
            mine = [zlib.crc32(json.dumps(row.get("prompt"), sort_keys=True).encode()) for row in inputs]
        except TypeError:  # images within a prompt
            mine = [0] * len(inputs)
        size = self.num_generations if self.model.training else self.num_generations_eval
        prompts = self.accelerator.gather(torch.tensor(mine, device=self.accelerator.device)).reshape(-1, size)
        if bool((prompts != prompts[:, :1]).any()):
            raise InputError(f"TRL: {size} rows in a row are not of one prompt; a sampler of your own must repeat each "
                             "prompt num_generations times in a row")

    # --- entropy -----------------------------------------------------------------------------------------

    def _get_per_token_logps_and_entropies(self, model, *args, compute_entropy=False, **kwargs):
        mine = self._generating and model is self.model  # not the reference
        out = super()._get_per_token_logps_and_entropies(
            model, *args, compute_entropy=compute_entropy or mine, **kwargs)
        if mine:
            self._old_entropies.append(out[1])
        return out

    def _entropies(self, output: dict) -> tuple[np.ndarray, np.ndarray]:
        """(mean entropy over response tokens (N,) in nats, number of them (N,)), of all processes."""
        mask = output["completion_mask"] * output.get("tool_mask", 1)
        if "old_per_token_logps" in output:  # TRL's first pass of this batch was over the same tokens
            entropy = self._old_entropies[0]
        else:
            passed = inspect.signature(super()._get_per_token_logps_and_entropies).parameters
            ids, attention = (torch.cat([output[f"prompt_{x}"], output[f"completion_{x}"]], dim=1)
                              for x in ("ids", "mask"))
            with torch.no_grad(), disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
                _, entropy, _ = super()._get_per_token_logps_and_entropies(
                    self.model, ids, attention, mask.shape[1], batch_size=self.args.per_device_train_batch_size,
                    compute_entropy=True, **{name: output[name] for name in passed if name in output})
        self._old_entropies = []
        count = mask.sum(dim=1)
        mean = (entropy.float() * mask).sum(dim=1) / count.clamp(min=1)
        both = self.accelerator.gather(torch.stack([mean, count.float()], dim=1)).double().cpu().numpy()
        return both[:, 0], both[:, 1]

    # --- record, save, resume ----------------------------------------------------------------------------

    def _log(self, metrics: dict[str, float], mode: str) -> None:
        for name, value in metrics.items():
            self._metrics[mode][f"{PREFIX}{name}"].append(value)

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            self.weights.save(folder / STATE)

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and (self.weights.adaptive or (Path(checkpoint) / STATE).exists()):
            self.weights.load(Path(checkpoint) / STATE)


def _counts(reward: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(successes (P,), judged rollouts (P,)) of groups of `size` rows in a row; groups without a judgement left out."""
    judged = (~np.isnan(reward)).reshape(-1, size).sum(axis=1)
    return np.nan_to_num(reward).reshape(-1, size).sum(axis=1)[judged > 0].astype(int), judged[judged > 0]
