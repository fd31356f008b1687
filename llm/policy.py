"""The policy: a Hugging Face causal language model behind two calls, `score` and `next_logits`.

Both go through `forward`, so that a sharded model gathers its weights once per call: everything
that happens between, the chunks of the head included, needs no communication.
"""

import inspect
import json
from pathlib import Path

import torch

from fade_sim.errors import InputError
from llm import lora
from llm.logprob import Scores, scored, token_scores
from llm.settings import Model


class Policy(torch.nn.Module):
    """A causal language model. Shapes: N rows, T tokens, d hidden, V vocabulary."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        parameters = inspect.signature(type(model).forward).parameters
        self._cache = "cache" if "cache" in parameters else "past_key_values"  # renamed in transformers 5
        self.checkpointing = False

    @property
    def config(self):
        return self.model.config

    @property
    def head(self) -> torch.nn.Module:
        return self.model.get_output_embeddings()

    @property
    def device(self):
        return next(self.model.parameters()).device

    def trainable(self) -> dict[str, torch.nn.Parameter]:
        """Name -> parameter, for those that are trained."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def checkpoint_activations(self) -> None:
        """Recompute the blocks in the backward pass instead of keeping what they computed."""
        enable = getattr(self.model, "activation_checkpointing_enable", self.model.gradient_checkpointing_enable)
        enable({"use_reentrant": False})
        self.model.disable_input_require_grads()  # a hook that only the other kind of checkpointing needs
        self.checkpointing = True

    def forward(self, call: str, **inputs):
        return getattr(self, f"_{call}")(**inputs)

    def score(self, rollouts, temperature: float, chunk: int, *, entropy_grad: bool = False) -> Scores:
        """Log-probability and entropy of the answer tokens of `batch.Rollouts`, answers end to end (M,)."""
        return self("score", ids=rollouts.ids, attention=rollouts.attention, mask=rollouts.answer,
                    temperature=temperature, chunk=chunk, entropy_grad=entropy_grad)

    def next_logits(self, ids, attention, position, cache) -> torch.Tensor:
        """(N, V) float32 logits after the last token; grows the key-value cache. attention None: no padding."""
        return self("next_logits", ids=ids, attention=attention, position=position, cache=cache)

    def hidden(self, rollouts) -> torch.Tensor:
        """(M, d) hidden states that the head turned into the distributions of the answer tokens."""
        return self("hidden", ids=rollouts.ids, attention=rollouts.attention, mask=rollouts.answer)

    def _hidden(self, ids, attention, mask):
        padding = attention if bool((attention == 0).any()) else None
        return self.states(ids, padding, (attention.cumsum(dim=1) - 1).clamp(min=0))[:, :-1][scored(mask)]

    def states(self, ids, attention, position):
        """(N, T, d) last hidden states. attention: None, (N, T) with 0 on padding, or a whole (N, 1, T, T) mask."""
        self.model.train(self.checkpointing and torch.is_grad_enabled())  # it recomputes in this mode only
        return self.model.base_model(input_ids=ids, attention_mask=attention, position_ids=position,
                                     use_cache=False).last_hidden_state

    def _score(self, ids, attention, mask, temperature, chunk, entropy_grad):
        hidden = self._hidden(ids, attention, mask)
        return token_scores(hidden, ids[:, 1:][scored(mask)], self.head, temperature, chunk,
                            entropy_grad=entropy_grad)

    def _logits(self, ids, bias, position):
        return self.head(self.states(ids, bias, position))

    def _next_logits(self, ids, attention, position, cache):
        self.model.eval()
        out = self.model.base_model(input_ids=ids, attention_mask=attention, position_ids=position, use_cache=True,
                                    **{self._cache: cache})
        return self.head(out.last_hidden_state[:, -1]).float()


def load(settings: Model) -> tuple[Policy, object]:
    """(policy, tokenizer) from a folder. Nothing is downloaded. Raises InputError on a folder that is none."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = Path(settings.path)
    if not settings.path:
        raise InputError("model.path is empty, expected the folder of a causal language model "
                         "(`fade-llm pretrain --out base` makes a small one in a few minutes)")
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder}: is no model folder (it has no config.json)")
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True,
                                                     dtype=getattr(torch, settings.dtype))
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{folder}: cannot be loaded ({error})") from None
    return prepare(model, settings), tokenizer


def prepare(model, settings: Model) -> Policy:
    """A policy without dropout, with LoRA where asked, its head checked."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # a dropped unit would make the sampled and the trained policy differ
        if getattr(module, "attention_dropout", 0.0):
            module.attention_dropout = 0.0
    model.eval()
    if settings.lora_rank:
        lora.add(model, settings.lora_rank, settings.lora_alpha)
    policy = Policy(model)
    check_head(policy)
    if settings.trained == "head":
        if settings.lora_rank:
            raise InputError("model.trained is 'head' and model.lora_rank is not 0: give one of them")
        model.requires_grad_(False)
        policy.head.requires_grad_(True)
    return policy


def check_head(policy: Policy) -> None:
    """Refuse a model whose logits are more than its head on the last hidden states (capped or scaled logits)."""
    ids = torch.arange(4, device=policy.device)[None] % policy.config.vocab_size
    with torch.no_grad():
        logits = policy.model(input_ids=ids, use_cache=False).logits.float()
        ours = policy.head(policy.states(ids, None, torch.arange(4, device=policy.device)[None])).float()
    if not torch.allclose(logits, ours, rtol=1e-2, atol=1e-2):
        raise InputError(f"{type(policy.model).__name__}: its logits are not its head on its last hidden states "
                         f"(difference {float((logits - ours).abs().max()):.3g}); such models are not supported")


def export(policy: Policy, tokenizer, folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """A Hugging Face folder (safetensors). tensors: the whole weights by name, LoRA already merged."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder.mkdir(parents=True, exist_ok=True)
    policy.model.save_pretrained(folder, state_dict=tensors, safe_serialization=True)
    tokenizer.save_pretrained(folder)


def parameter_count(folder: Path) -> int:
    """Parameters of a model folder, from the headers of its safetensors files alone."""
    total = 0
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        for name, entry in header.items():
            if name != "__metadata__":
                size = 1
                for n in entry["shape"]:
                    size *= n
                total += size
    if not total:
        raise InputError(f"{folder}: has no safetensors weights")
    return total
