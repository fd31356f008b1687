"""SGD or AdamW on float32 copies of the trained weights, with a state that is complete before the first step."""

import torch

from fade_sim.errors import InputError
from fade_sim.settings import Train
from llm.parallel import Ranks, global_norm
from llm.settings import Model


class Optimiser:
    """Steps of the trained parameters. Weights stored in bfloat16 are rounded copies of float32 ones:
    a small step added to a bfloat16 weight would be lost."""

    def __init__(self, parameters: dict[str, torch.nn.Parameter], train: Train, model: Model):
        self.parameters, self.max_norm = parameters, model.max_grad_norm
        self.master = {name: p if p.dtype == torch.float32 else p.detach().float() for name, p in parameters.items()}
        kind = {"lr": model.lr, "weight_decay": model.weight_decay}
        if train.optimizer == "sgd":
            self.torch = torch.optim.SGD(self.master.values(), **kind)
        else:
            self.torch = torch.optim.AdamW(self.master.values(), betas=(0.9, 0.999), eps=1e-8, **kind)
            for p in self.master.values():
                self.torch.state[p] = {"step": torch.zeros(()), "exp_avg": torch.zeros_like(p),
                                       "exp_avg_sq": torch.zeros_like(p)}

    def step(self, ranks: Ranks) -> float:
        """Take a step and clear the gradients. Returns the global gradient norm before any clip.

        Raises InputError on a non-finite gradient, before any weight has changed.
        """
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        norm = global_norm(gradients, ranks)
        if not norm < float("inf"):
            raise InputError(f"the gradient is not finite ({norm}): lower model.lr, or set model.max_grad_norm or "
                             "loss.ratio_cap")
        if self.max_norm and norm > self.max_norm:
            for gradient in gradients:
                gradient.mul_(self.max_norm / norm)
        for name, p in self.parameters.items():
            if self.master[name] is not p:
                self.master[name].grad = None if p.grad is None else p.grad.float()
        self.torch.step()
        with torch.no_grad():
            for name, p in self.parameters.items():
                if self.master[name] is not p:
                    p.copy_(self.master[name])
                p.grad = None
        return norm

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything a checkpoint needs, by name; the tensors themselves, so that loading fills them in place."""
        out = {}
        for name, p in self.master.items():
            if p is not self.parameters[name]:
                out[f"master.{name}"] = p
            out |= {f"{key}.{name}": value for key, value in self.torch.state.get(p, {}).items()}
        return out
