"""LoRA (arXiv 2106.09685): every linear layer but the head gets a trained update of low rank, W + (alpha/r) B A."""

import math

import torch


class LoraLinear(torch.nn.Module):
    """A frozen linear layer with a low-rank update; B starts at 0, so the policy starts unchanged."""

    def __init__(self, base: torch.nn.Linear, rank: int, alpha: float):
        super().__init__()
        self.base, self.scale = base, alpha / rank
        kind = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.down = torch.nn.Parameter(torch.empty(rank, base.in_features, **kind))
        self.up = torch.nn.Parameter(torch.zeros(base.out_features, rank, **kind))
        torch.nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.down.T @ self.up.T)


def add(model: torch.nn.Module, rank: int, alpha: float) -> None:
    """Freeze the model and put an update on every linear layer outside the head."""
    head = model.get_output_embeddings()
    model.requires_grad_(False)
    generator_state = torch.get_rng_state()
    torch.manual_seed(0)  # the starting point is part of the settings, not of what ran before
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.Linear) and child is not head and not isinstance(parent, LoraLinear):
                setattr(parent, name, LoraLinear(child, rank, alpha))
    torch.set_rng_state(generator_state)


def merged(model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights under the names of the model without LoRA, the updates added. tensors: the whole state by name."""
    scales = {name: m.scale for name, m in model.named_modules() if isinstance(m, LoraLinear)}
    out = {}
    for name, tensor in tensors.items():
        parent, _, leaf = name.rpartition(".")
        if parent in scales and leaf in ("down", "up"):
            continue
        owner = parent.removesuffix(".base")
        if owner != parent and owner in scales:
            if leaf == "weight":
                update = tensors[f"{owner}.up"].double() @ tensors[f"{owner}.down"].double()
                tensor = (tensor.double() + scales[owner] * update).to(tensor.dtype)
            name = f"{owner}.{leaf}"
        out[name] = tensor
    return out
