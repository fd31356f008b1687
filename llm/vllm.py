"""vLLM behind the sampler's interface. UNTESTED against vLLM itself (there is no CPU build): its contract is
tested with a fake engine. After every update the engine has to see the new weights: `sync` hands them over.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fade_sim.errors import InputError
from llm import lora
from llm.parallel import whole
from llm.rollout import Answers
from llm.settings import Rollout


@dataclass
class VLLMSampler:
    """Answers from a vLLM engine in this process. Log-probabilities are the engine's, at the temperature."""

    path: str
    settings: Rollout
    stop: tuple[int, ...]
    pad: int
    engine: Any = None
    parameters: Any = None  # a function of keyword arguments that makes vLLM's SamplingParams

    def sample(self, policy, prompts, group_size, keys) -> Answers:
        self._start()
        self.sync(policy)
        requests, params = [], []
        for prompt, key in zip(prompts, keys, strict=True):
            seeds = np.random.SeedSequence(key).generate_state(group_size)  # a group's randomness is its own
            for seed in seeds.tolist():
                requests.append({"prompt_token_ids": list(prompt)})
                params.append(self.parameters(
                    temperature=self.settings.temperature, max_tokens=self.settings.max_tokens, seed=seed,
                    stop_token_ids=list(self.stop), logprobs=0, top_p=1.0, top_k=-1, detokenize=False))
        outputs = [out.outputs[0] for out in self.engine.generate(requests, params, use_tqdm=False)]
        rows, width = len(outputs), self.settings.max_tokens
        ids = torch.full((rows, width), self.pad)
        mask, logprob = torch.zeros((rows, width), dtype=torch.bool), torch.zeros((rows, width))
        for i, out in enumerate(outputs):
            n = len(out.token_ids)
            if n > width or len(out.logprobs) != n:
                raise InputError(f"vLLM returned {n} tokens and {len(out.logprobs)} log-probabilities, expected as "
                                 f"many of each and at most {width}")
            ids[i, :n], mask[i, :n] = torch.tensor(out.token_ids), True
            logprob[i, :n] = torch.tensor([step[t].logprob for step, t in
                                           zip(out.logprobs, out.token_ids, strict=True)])
        last = ids.gather(1, (mask.sum(1, keepdim=True) - 1).clamp(min=0))[:, 0]
        return Answers(ids, mask, torch.isin(last, torch.tensor(self.stop)), logprob.clamp(max=0.0), None)

    def sync(self, policy) -> None:
        """Load the policy's present weights into the engine."""
        tensors = {name: whole(p.detach()) for name, p in policy.model.state_dict().items()}
        merged = list(lora.merged(policy.model, tensors).items())
        self.engine.apply_model(lambda model: model.load_weights(merged))

    def _start(self) -> None:
        if self.engine is not None:
            return
        try:
            import vllm
        except ImportError:
            raise InputError("rollout.sampler = 'vllm' needs the package vllm, which needs a GPU") from None
        # processed_logprobs: of softmax(z / temperature), the policy that sampled, not of softmax(z)
        self.engine = vllm.LLM(self.path, enforce_eager=True, logprobs_mode="processed_logprobs")
        self.parameters = vllm.SamplingParams
