"""The plan of a run as a page of Markdown that also reads well in a terminal."""

import numpy as np

from fade_sim import theory
from fade_sim.advantage import resolve
from fade_sim.theory.stability import safe_delta
from llm.graduate import models
from llm.graduate.budget import Budget
from llm.graduate.forecast import Forecast
from llm.graduate.models import Spec

_KAPPAS = (0.001, 0.003, 0.01, 0.03, 0.1)  # eta lambda_max(E[m_S F]), shown for orientation
_DELTAS = (0.3, 0.5, 0.8)


def page(settings, m: Spec, b: Budget, engine: str, source: str, differences: list[tuple[str, str, str]],
         forecast: Forecast | None) -> str:
    """Everything in one text. differences: (key, value in `source`, value here)."""
    c = settings.contender
    head = [f"# Plan: {c.label} on {m.name}, {engine}, {_nodes(b)}", "",
            "Computed, not measured: nothing here has run on a GPU. Every assumption is named where it is used.",
            "1 GB is 1e9 bytes.", ""]
    parts = (_run(settings, m, b), _memory(settings, b), _time(settings, m, b), _age(settings, b), _sign(settings, b),
             _schedule(settings, forecast), _differences(source, differences), _before(settings, m, b))
    return "\n".join(head + [line for part in parts for line in [*part, ""]]).rstrip() + "\n"


def title(settings) -> str:
    """Rule and model, for comments and docstrings of what is written: without quotes and backslashes."""
    return "".join(c for c in f"{settings.contender.label} on {settings.model.path}" if c not in "\"'\\")


# --- sections ------------------------------------------------------------------------------------------


def _run(s, m: Spec, b: Budget) -> list[str]:
    at, per = b.layout, s.train.group_size
    where = (f"{_count(at.trainer_nodes, 'node')} train ({at.trainer_gpus} GPUs), {at.sampler_nodes} sample "
             f"({at.replicas} replicas of {_count(s.cluster.tensor_parallel, 'GPU')})" if at.apart else
             f"{_count(at.nodes, 'node')}: all {at.trainer_gpus} GPUs sample ({at.replicas} replicas of "
             f"{_count(s.cluster.tensor_parallel, 'GPU')}) and train in turn")
    return ["## The run", "",
            f"- model: {m.name}, {b.parameters:,} parameters ({m.source})",
            f"- rule: {s.contender.label}: {s.contender.method.rule.equation}",
            f"- cluster: {where}; {s.cluster.gpus_per_node} {s.cluster.gpu.upper()} a node",
            f"- update: {s.train.prompts} prompts x {per} answers = {b.rollouts} rollouts; {s.train.steps:,} updates, "
            f"{s.train.steps * s.train.prompts:,} prompts",
            f"- answers: at most {s.rollout.max_tokens:,} tokens, {b.mean_tokens:,.0f} on average (assumed); prompts: "
            f"at most {s.cluster.prompt_tokens:,}, and counted as if they all had as many",
            f"- per update: {_short(b.sampled_tokens)} tokens sampled, {_short(b.trained_tokens)} trained on, of them "
            f"{_short(b.trained_tokens / b.layout.data_parallel)} by each of {b.layout.data_parallel} groups of "
            f"{_count(s.cluster.sequence_parallel, 'GPU')}"]


def _memory(s, b: Budget) -> list[str]:
    rows = [(name, _gb(size)) for name, size in b.trainer.items()] + [("sum", _gb(b.trainer_total))]
    fit = "fits" if b.trainer_total < 0.9 * b.gpu_memory else "DOES NOT FIT, or only just"
    out = ["## Memory of a GPU", "", *_table(("training", "GB"), rows), "",
           f"{fit} in {_gb(b.gpu_memory)} GB. Fully sharded over {b.layout.trainer_gpus} GPUs, bfloat16 "
           f"arithmetic, activation checkpointing, passes of {b.tokens:,} tokens a GPU, logits of "
           f"{b.chunk:,} tokens at a time. Buffers of communication and fragmentation are not "
           "in it."]
    if b.trainer_host:
        out.append(f"In the memory of the host, per GPU: {_gb(b.trainer_host)} GB of weights, gradients and moments "
                   f"({_gb(b.trainer_host * s.cluster.gpus_per_node)} GB a node).")
    rows = [(name, _gb(size)) for name, size in b.sampler.items()]
    out += ["", *_table(("sampling", "GB"), rows), ""]
    if not b.room:
        return [*out, "DOES NOT FIT: there is no room for one answer; raise cluster.tensor_parallel."]
    return [*out, f"The caches of a replica hold {b.room} answers at their mean size, {b.room * b.layout.replicas:,} "
            f"in all. {b.in_flight:,} are in flight, of which a replica decodes {b.at_once:.0f} at once: the others "
            "are done and wait for the longest answer of their group, taken to fill the limit. The sampler may fill "
            f"{b.sampler_share:.0%} of a GPU."]


def _time(s, m: Spec, b: Budget) -> list[str]:
    c, gpu = s.cluster, models.GPUS[s.cluster.gpu]
    out = ["## Time", "", *_table(("", "seconds per update"), [
        ("training", f"{b.train_seconds:.1f}"), ("sampling", f"{b.sample_seconds:.1f}"),
        ("an update", f"{b.seconds:.1f}")]), ""]
    if b.layout.apart:
        busy, idle = ("trainers", "samplers") if b.train_seconds >= b.sample_seconds else ("samplers", "trainers")
        ratio = min(b.train_seconds, b.sample_seconds) / max(b.train_seconds, b.sample_seconds)
        out.append(f"The {busy} set the pace; the {idle} are at work {ratio:.0%} of the time.")
    if b.decode:
        longest = s.rollout.max_tokens * b.at_once / b.decode
        out.append(f"The longest answer takes {longest:,.0f} s, {longest / b.seconds:.1f} updates.")
    days = b.seconds * s.train.steps / 86400
    return [*out, f"{s.train.steps:,} updates: {days:.1f} days, {b.gpu_hours:,.0f} GPU-hours.", "",
            f"- training: {b.flops:.3g} operations a token = (3 x {s.train.epochs} + 1) x "
            f"{b.flops / (3 * s.train.epochs + 1):.3g}, forward and backward and one pass for the old "
            f"log-probabilities and the entropy; 2 x {models.matrix_parameters(m):.4g} parameters that multiply, and "
            f"attention; {c.mfu:.0%} of {gpu.flops / 1e12:.0f} Tflop/s (assumed; the passes that checkpointing "
            "repeats are in that share)",
            f"- sampling: {b.decode:,.0f} tokens/s a replica: a step reads {2 * b.parameters / 1e9:.1f} GB of weights "
            f"and the caches, at {c.decode_share:.0%} of {gpu.bandwidth / 1e12:.2f} TB/s (assumed). A bound: prefill "
            "and the copying of weights come on top",
            "- not counted: the judge of the programs, checkpoints, evaluation, restarts"]


def _age(s, b: Budget) -> list[str]:
    k = s.cluster.sync_updates
    if not b.layout.apart:
        return ["## Age of the rollouts", "",
                f"On average {b.age:g} updates: the same GPUs sample a batch and learn from it"
                + (f" in {k} updates." if k > 1 else ", so it is on-policy up to the differences between the "
                   "sampler's arithmetic and the trainer's.")]
    waits = ("The caches are full: rollouts wait for one, where they only grow old." if b.at_once >= b.room else
             "More in flight would keep the samplers busier, fewer makes the data fresher.")
    return ["## Age of the rollouts", "",
            f"{b.age:g} updates are expected between the weights that start a rollout and the update that learns from "
            f"it: {s.train.staleness} in flight (rollouts in flight over rollouts per update, Little's law)"
            + (f", and ({k} - 1)/2 because the samplers get new weights every {k} updates" if k > 1 else "") + ".",
            (f"{b.enough} in flight would be enough for the samplers to keep pace with the trainers." if b.enough else
             "No number in flight lets the samplers keep pace with the trainers."),
            "The tokens of a rollout are younger than its start where the engine swaps weights in mid-answer. " + waits]


def _sign(s, b: Budget) -> list[str]:
    low, high = failure_over_success(s.contender, s.train.group_size)
    lag = b.age
    out = ["## Sign and stability", ""]
    if high is None:
        return [*out, "The rule reads the whole batch: its masses are not known before a run. Watch sign_ratio."]
    span = f"{high:.3g}" if np.isclose(low, high) else f"{low:.3g} to {high:.3g}"
    out += [f"Mass of failures over mass of successes, m_F/m_S: {span} over solve rates .02 to .98 and the gains the "
            "rule can take.", "",
            "With old rollouts and no importance ratio an update is unstable where",
            "",
            "    Lambda = kappa L (m_F/m_S - 1) > 1,    kappa = eta lambda_max(E_x[m_S F_x]),",
            "",
            f"L the age in updates, here {lag:g}, F_x the Fisher matrix of a prompt over all trained parameters. kappa "
            "is the one",
            "number that no page can know: it is the overlap of the features of different answers, under the metric of "
            "the optimiser."]
    if s.train.correction != "none":
        out.append(f"This config corrects for the age (train.correction = {s.train.correction}): in the simulator and "
                   "under SGD that removes")
        out.append("the instability; under Adam it was not removed on a small transformer. Watch it all the same.")
    if lag <= 0:
        return [*out, "", "On-policy (L = 0) Lambda is 0 for every rule and every delta is safe."]
    rows = [(f"{d:g}", f"{1 / (lag * (1 / d - 1)):.4g}") for d in _DELTAS]
    safe = [(f"{k:g}", f"{float(safe_delta(k, lag, 1.0)):.3f}") for k in _KAPPAS]
    out += ["", *_table(("delta (m_F = m_S/delta)", "unstable from kappa"), rows), "",
            *_table(("kappa", "smallest safe delta"), safe)]
    if np.isinf(high):
        out += ["", "This rule weighs failures alone at some solve rates: no kappa is safe there."]
    elif high > 1 + 1e-9:
        out += ["", f"This rule goes to m_F/m_S = {high:.3g}: unstable from kappa = {1 / (lag * (high - 1)):.4g}."]
    else:
        out += ["", "This rule never has m_F above m_S: Lambda is at most 0. (The exact feedback E[A Hess log pi] is "
                "not: probe.exact.)"]
    return out


def failure_over_success(contender, group_size: int) -> tuple[float | None, float | None]:
    """Smallest and largest m_F/m_S over solve rates .02 to .98; None for rules that read the whole batch.

    Adaptive rules: over the deltas that the controller can reach; 1 for those of equal masses.
    """
    rule, state = contender.method.rule, contender.controller
    if rule.adaptive:
        signed = rule.control in ("none", "unit") and state.ablation != "no_delta"
        return 1.0, 1.0 / state.delta_min if signed else 1.0
    if rule.reads_batch:
        return None, None
    m_S, m_F = theory.masses(contender.method, group_size, np.linspace(0.02, 0.98, 49))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = m_F / m_S
    ratio = ratio[~np.isnan(ratio)]
    return float(ratio.min()), float(ratio.max())


def _schedule(s, forecast: Forecast | None) -> list[str]:
    out = ["## Schedule", ""]
    state, rule = s.contender.controller, s.contender.method.rule
    if rule.adaptive:
        out += [f"alpha is {state.alpha_max:g} while the smoothed solve rate is below "
                f"{3 / (3 + 2 * state.alpha_max):.3f}, 1 above .600, 1.5 (1-phat)/phat between; delta falls from 1 to "
                f"{state.delta_min:g} as the entropy falls {1 - state.delta_min:g} nats below H* = "
                + (f"{state.h_star:g} nats" if state.h_star is not None else "half the entropy of the first batch")
                + f". Both averages move {state.rate:.0%} of the way per update."]
        if state.h_star is not None and not state.relative and state.h_star < 1 - state.delta_min:
            out.append(f"H* is below {1 - state.delta_min:g}: an entropy of 0 leaves delta at {1 - state.h_star:g}, "
                       "its floor is out of reach.")
        if state.ablation != "none":
            out.append(f"Ablation: {state.ablation}.")
    else:
        out.append("The rule is static: its weights do not change during the run.")
    if forecast is None:
        return [*out, "", "No forecast: record rollouts of the model (fade-llm rollout, or the engine's dumps), then",
                "`fade-sim run CONFIG --solve-rates FILE`, and give its folder as --forecast."]
    f = forecast
    began = f"solve rates of {f.solve_rates}" if f.solve_rates else "a made-up world, NOT recorded solve rates"
    rows = [(f"{f.steps[i] / f.steps[-1]:.0%}", f"{f.steps[i]}", *(_number(f.values[x][i]) for x in f.values))
            for i in np.unique(np.linspace(0, len(f.steps) - 1, 9).round().astype(int))]
    out += ["", f"Simulated: {f.rule} in {f.folder}, regime {f.regime!r}, from {began}, group size {f.group_size}, "
            f"mean of {_count(f.seeds, 'seed')}:", "",
            *_table(("share", "step", *f.values), rows), "",
            "Read it against phat, not against the step: how many updates a solve rate takes does not carry over, and",
            "the simulator's entropy is per answer of a few, not per token, so its delta only shows a direction."]
    if f.group_size != s.train.group_size:
        out.append(f"Its groups have {f.group_size} rollouts, this run's {s.train.group_size}: the masses differ.")
    return out


def _differences(source: str, differences) -> list[str]:
    if not differences:
        return [f"## What differs from {source}", "", "Nothing that it sets."]
    return [f"## What differs from {source}", "", *_table(("setting", "there", "here"), differences), "",
            *(f"- {key}: {why}" for key, why in _WHY.items() if any(d[0].startswith(key) for d in differences))]


_WHY = {
    "train.staleness": "samplers on other nodes work while the trainers do, so rollouts are old; on one node they "
                       "are not",
    "train.optimizer": "a transformer of this size is not trained by plain gradient descent",
    "train.prompts": "the batch that keeps trainers and samplers at work",
    "train.steps": "as long as the paper's runs, as far as is known",
    "train.correction": "old rollouts need the importance ratio unless the instability is the subject",
    "model.": "a step of the toy's head or of a small model says nothing about this one",
    "rollout.max_tokens": "the problems need long answers",
    "data.": "problems with unit tests in place of arithmetic",
    "reward.": "a program has to pass its tests, in isolation",
    "loss.": "one constant denominator: a long answer weighs by its tokens, in every batch alike",
    "parallel.": "memory",
    "cluster.": "hardware",
}


def _before(s, m: Spec, b: Budget) -> list[str]:
    c, row = s.contender, s.raw["compare"][0]
    rule = " ".join([f"--method.name {c.method.name}",
                     *(f"--method.{k} {v}" for k, v in c.method.params.items()
                       if not isinstance(v, (list, tuple)) and v != c.method.rule.params[k].default),
                     *(f"--controller.{k} {v}" for k, v in row.get("controller", {}).items()
                       if k in ("h_star", "ablation") and v != "none")])
    high = failure_over_success(c, s.train.group_size)[1]
    own = not c.method.rule.adaptive and high is not None and high > 1 + 1e-9
    probe = ("" if own else " --method.name asym_delta --method.delta 0.5",
             "   The recorded Lambda is this rule's own." if own else
             "   delta .5 has m_F/m_S = 2: the recorded Lambda is kappa L, at alpha = 1." + _mass_at_most(s))
    return ["## Before the long run", "",
            "1. Solve rates of the untrained model, and the forecast from them:", "",
            f"       fade-llm rollout {s.model.path} --config config.toml --out rollouts.jsonl",
            f"       fade-sim replay rollouts.jsonl --group-size {s.train.group_size}",
            f"       fade-sim run {rule} --solve-rates rollouts.jsonl --out forecast", "",
            "2. kappa, on one GPU that holds the model, through low-rank updates: all weights would need a gradient of "
            f"{4 * b.parameters / 1e9:.0f} GB",
            "   per rollout. A subspace of the weights, so a lower bound; in AdamW's own metric after three updates.",
            "",
            "       fade-llm train config.toml --model.lora_rank 1 --train.steps 3 --train.record 3 --train.prompts 2",
            f"       --probe.stability true --probe.rollouts {probe_rollouts(m, s.train.group_size)} "
            f"--data.eval_prompts 1{probe[0]}", "", probe[1],
            "3. The first hundred updates: sign_ratio, phat, delta and the entropy of successes and failures, which "
            "the adapter logs;",
            "   stop if the entropy runs away while m_F is above m_S."]


def _mass_at_most(s) -> str:
    """How much smaller kappa is where alpha is largest, for rules whose controller moves alpha."""
    rule, state, G = s.contender.method.rule, s.contender.controller, s.train.group_size
    if not rule.adaptive or rule.control not in ("none", "unit") or state.ablation == "no_alpha":
        return ""
    p = np.linspace(0.005, 0.995, 100)
    first, last = (theory.masses(resolve(s.contender.method, alpha, 1.0), G, p)[0].mean()
                   for alpha in (1.0, state.alpha_max))
    return (f" At alpha = {state.alpha_max:g} the mass on successes, and so about kappa,\n   is {last / first:.2f} of "
            "that (mean over uniform solve rates).")


def probe_rollouts(m: Spec, group_size: int) -> int:
    """Rollouts whose rank-1 gradients fit into the 4 GiB of the probe, a multiple of 2 groups, at most 256.

    Rank 1 adds inputs + outputs of the seven matrices of a layer: attention 4 d + 2 H h + 2 K h, MLP 3 (d + f).
    """
    added = m.layers * (4 * m.hidden + 2 * (m.heads + m.kv_heads) * m.head_dim + 3 * (m.hidden + m.intermediate))
    return max(min(256, 2**32 // (4 * added)) // (2 * group_size), 2) * 2 * group_size


# --- text ----------------------------------------------------------------------------------------------


def _table(heads, rows) -> list[str]:
    """A Markdown table padded so that it is one in a terminal too; the first column is text."""
    cells = [tuple(map(str, row)) for row in (heads, *rows)]
    width = [max(len(row[i]) for row in cells) for i in range(len(heads))]

    def line(row):
        return "| " + " | ".join(v.ljust(w) if i == 0 else v.rjust(w) for i, (v, w) in
                                 enumerate(zip(row, width, strict=True))) + " |"

    rule = "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(width)) + "|"
    return [line(cells[0]), rule, *(line(row) for row in cells[1:])]


def _nodes(b: Budget) -> str:
    at = b.layout
    return _count(at.nodes, "node") + (f" ({at.trainer_nodes} + {at.sampler_nodes})" if at.apart else "")


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f}"


def _short(n: float) -> str:
    return f"{n / 1e6:.2f}M" if n >= 1e6 else f"{n / 1e3:.0f}k"


def _number(x: float) -> str:
    return "-" if np.isnan(x) else f"{x:.3f}"
