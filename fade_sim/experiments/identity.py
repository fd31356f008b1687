"""Is the sign of the weights only a baseline? The identity in exact expectation, and each switch that breaks it."""

import numpy as np

from fade_sim.experiments import matched
from fade_sim.experiments.claim import FAILS, HOLDS, UNDER, Claim, Number, Score
from fade_sim.experiments.numbers import beside_prototype, raw, shown

LEVEL = 0.8  # train pass@1 at which rules are compared
EXACT = 1e-9  # relative distance of two heads that counts as none: rounding adds up to about 1e-14
SAME = 0.01  # nats per unit of log(m_S/m_F): what counts as no effect of the sign
CLAIM = Claim(
    "identity", "In expectation the sign of the weights is only a baseline",
    "Scores have mean zero, so the expected update is (w_S + w_F) grad p: rules that differ only in how they split "
    "their weight between successes and failures learn the same policy.",
    "the score identity p g_S + q g_F = 0; the sign axis is that of arXiv 2607.01490",
    f"Two tests per switch of the dynamics, on rules whose slope is 1. Exact: after 40 updates in exact expectation no "
    f"head lies further than {EXACT:g} of its norm from that of plain REINFORCE. Sampled: the entropy and its "
    f"parts within successes and failures, at train pass@1 {LEVEL:g}, change by less than {SAME:g} nats per unit "
    f"of log(m_S/m_F) (three whole 95% intervals). 'holds' needs both for every switch, 'does not hold here' means "
    f"neither for any.",
)

LOO = tuple({"name": "asym_pure_loo", "delta": d} for d in (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0))
BASELINES = tuple({"name": "baseline", "b": b} for b in (0.0, 0.25, 0.5, 0.75, 1.0))
ASYM = tuple({"name": "asym_delta", "delta": d} for d in (0.25, 0.5, 1.0, 2.0, 4.0))  # under match = slope
ENDS = ("baseline(0)", "baseline(1)")  # REINFORCE and NSR: only successes, only failures
_STALE = {"staleness": 10, "lr": 20.0}
SWITCHES = {  # (train, world) over: SGD lr 10, shared head alone, on-policy, G = 16
    "no switch": ({}, {}),
    "large steps": ({"lr": 60.0, "group_size": 8}, {}),
    "groups of 4": ({"group_size": 4}, {}),
    "reward noise": ({}, {"false_negative": 0.4, "false_positive": 0.05}),
    "Adam": ({"optimizer": "adam", "lr": 0.02}, {}),
    "per-prompt table": ({"lr_table": 10.0}, {}),
    "table + groups of 4": ({"lr_table": 10.0, "group_size": 4}, {}),
    "Adam + table + groups of 4": ({"lr_table": 10.0, "group_size": 4, "optimizer": "adam", "lr": 0.02}, {}),
    "stale": (_STALE, {}),
    "stale + importance ratio": ({**_STALE, "correction": "ratio"}, {}),
    "stale + PPO clip": ({"staleness": 40, "lr": 40.0, "correction": "clip"}, {}),
    "4 epochs": ({"lr": 5.0, "epochs": 4}, {}),
    "4 epochs + PPO clip": ({"lr": 20.0, "epochs": 4, "correction": "clip"}, {}),
}
PROTOTYPE = {  # slopes of H, H_S, H_F at .8 over asym_pure_loo, 12 worlds
    "no switch": ("+.002+-.002", "+.001+-.001", "+.003+-.002"),
    "large steps": ("-.001+-.004", "-.003+-.003", "+.006+-.005"),
    "per-prompt table": ("-.004+-.002", "-.0064+-.0016", "+.026+-.003"),
    "table + groups of 4": ("-.009+-.004", "-.0183+-.0033", "+.086+-.006"),
    "Adam + table + groups of 4": ("-.021+-.003", "-.0241+-.0027", "+.072+-.003"),
    "stale": ("+.187+-.008", "+.101+-.004", "+.285+-.011"),
    "stale + PPO clip": ("-.019+-.002", "+.004+-.002", "-.087+-.005"),
}
DIFFERS = (  # (start of a number's name, why it is not the prototype's)
    ("stale + PPO clip", "half of it the sample of worlds: over 64 of them dH -.013 and dH_F -.076, with a standard "
                         "error of .002"),
)
PARTS = (("train_entropy", "H"), ("train_entropy_success", "H_S"), ("train_entropy_failure", "H_F"))
_BASE = {"lr": 10.0, "lr_table": 0.0, "record": 10}
_DISTANCE = "largest over 3 rules, 10 worlds and all updates, relative to the norm of the head"
_EXACT = {"steps": 40, "seeds": 10, "world": {"train_prompts": 32, "test_prompts": 1}}
SETTINGS = {
    "quick": {
        "switches": ("no switch", "groups of 4", "Adam", "table + groups of 4", "stale", "stale + importance ratio",
                     "stale + PPO clip"),
        "train": {**_BASE, "steps": 400, "seeds": 10}, "exact": {**_EXACT, "group_sizes": (4, 16)},
    },
    "full": {
        "switches": tuple(SWITCHES), "train": {**_BASE, "steps": 800, "seeds": 24},
        "exact": {**_EXACT, "group_sizes": (2, 4, 16, 64)},
    },
}
LIMITS = (
    "One shared bilinear head and a table per prompt: what a network shares between prompts lies between the two.",
    "Some 40 intervals of 95% are looked at: two of them exclude 0 by chance.",
    "No effect means below the stated bound at one solve rate, not none; over a longer run effects can add up.",
    "REINFORCE and NSR have an infinite or zero sign ratio: they are shown, but the slopes are over asym_pure_loo.",
)


def configs(settings: dict) -> dict:
    """The cells that run asks for: per switch the slope-free rules, and asym_delta with its slope divided out."""
    asked = {}
    for name in settings["switches"]:
        train, world = SWITCHES[name]
        train = {**settings["train"], **train}
        asked[f"identity: {name}"] = raw(name, LOO + BASELINES, train, world)
        asked[f"identity: {name}, asym_delta"] = raw(name, ASYM, {**train, "match": "slope"}, world)
    return asked


def run(settings: dict, cells) -> dict:
    """Traces per switch; gradients and distances of heads in exact expectation."""
    from fade_sim.experiments import identity_exact  # the simulator: not before something runs

    done = {what: cells.trace(asked, what) for what, asked in configs(settings).items()}
    exact = settings["exact"]
    probe = (LOO[0], LOO[-1], BASELINES[-1])
    apart = {name: identity_exact.distances({**settings["train"], **SWITCHES[name][0]},
                                            {**SWITCHES[name][1], **exact["world"]}, (BASELINES[0], *probe),
                                            exact["steps"], exact["seeds"]) for name in settings["switches"]}
    rules = ({"name": "rloo"}, {"name": "dr_grpo"}, *LOO, *BASELINES)
    gradients = {G: identity_exact.gradients(rules, G, exact["seeds"]) for G in exact["group_sizes"]}
    return {"traces": {name: done[f"identity: {name}"] for name in settings["switches"]},
            "asym": {name: done[f"identity: {name}, asym_delta"] for name in settings["switches"]},
            "apart": apart, "gradients": gradients}


def score(results: dict) -> Score:
    numbers = _gradient_numbers(results["gradients"])
    exact, sampled, unclear = [], [], []
    for name, trace in results["traces"].items():
        apart = float(results["apart"][name].max())
        slopes = slopes_of(name, trace)
        train = SWITCHES[name][0]
        one_policy = train.get("correction") == "ratio" or not {"staleness", "epochs"} & train.keys()
        numbers += [*slopes, Number(f"{name}: distance of heads in exact expectation", apart,
                                    predicted=0.0 if one_policy else float("nan"), note=_DISTANCE)]
        numbers += _other_numbers(name, trace, results["asym"][name])
        if apart < EXACT:
            exact.append(name)
        if all(row.low > -SAME and row.high < SAME for row in slopes):
            sampled.append(name)
        elif not any(differs(row) for row in slopes):
            unclear.append(name)
    switches = list(results["traces"])
    both = [name for name in switches if name in exact and name in sampled]
    verdict = HOLDS if both == switches else UNDER if exact or sampled else FAILS
    conditions = [f"{what}, under: {', '.join(names)}" for what, names in
                  (("in exact expectation", exact), ("in sampled training", sampled)) if names]
    return Score(verdict, tuple(conditions) if verdict == UNDER else (),
                 _because(results, exact, sampled, unclear, numbers), tuple(numbers), LIMITS,
                 beside_prototype(numbers, DIFFERS))


def differs(row: Number) -> bool:
    """Is the whole interval on one side of 0?"""
    return row.low > 0 or row.high < 0


def family(trace, rules: str):
    """(log sign ratio (rules,), indices) of a family in a trace, by the start of its labels."""
    chosen = [i for i, label in enumerate(trace.labels) if label.startswith(rules)]
    return matched.log_sign_ratio(trace)[chosen], chosen


def slopes_of(name: str, trace, rules: str = "asym_pure_loo") -> list[Number]:
    """Change of H, H_S, H_F at the level per unit of log(m_S/m_F), within a family of equal slope."""
    ratio, chosen = family(trace, rules)
    said = PROTOTYPE.get(name, ("",) * 3) if rules == "asym_pure_loo" else ("",) * 3
    return [matched.slope_number(f"{name}: d{short}/dlog(m_S/m_F), {rules}", ratio,
                                 matched.at_level(trace, metric, LEVEL)[chosen], prototype=prototype)
            for (metric, short), prototype in zip(PARTS, said, strict=True)]


def _other_numbers(name: str, trace, asym) -> list[Number]:
    """The ends of the sign axis, rank, the end of training, and asym_delta with its slope divided out."""
    first, last = (trace.labels.index(label) for label in ENDS)
    rows = []
    for metric, what in (*PARTS, ("rank1", "rank-1 energy")):
        at = matched.at_level(trace, metric, LEVEL)
        rows.append(matched.paired(f"{name}: {what} of REINFORCE - NSR", at[first], at[last]))
    ratio, chosen = family(trace, "asym_pure_loo")
    rank = matched.at_level(trace, "rank1", LEVEL)[chosen]
    rows.append(matched.slope_number(f"{name}: d(rank-1 energy)/dlog(m_S/m_F), asym_pure_loo", ratio, rank))
    rows.append(matched.slope_number(f"{name}: dH/dlog(m_S/m_F) at the end, asym_pure_loo", ratio,
                                     trace.last("train_entropy")[chosen]))
    rows.append(slopes_of(name, asym, "asym_delta")[0])
    return rows


def _gradient_numbers(gradients: dict) -> list[Number]:
    """Exact gradients at the start: direction and length against RLOO, by group size."""
    from fade_sim.experiments.identity_exact import cosine

    rows = []
    for G, found in gradients.items():
        rloo = found["rloo"]
        off = max(float((1 - cosine(g, rloo)).max()) for label, g in found.items() if label != "dr_grpo")
        length = {label: np.linalg.norm(g, axis=1) / np.linalg.norm(rloo, axis=1) for label, g in found.items()}
        slope_free = max(float(abs(x - 1).max()) for label, x in length.items() if label != "dr_grpo")
        rows += [
            Number(f"G = {G}: 1 - cosine of expected gradients", off, predicted=0.0, prototype="2e-16",
                   note="largest over 12 rules of slope 1 and 10 worlds"),
            Number(f"G = {G}: largest error of their norm", slope_free, predicted=0.0),
            Number(f"G = {G}: norm of dr_grpo's over it", float(length["dr_grpo"].mean()), predicted=1 - 1 / G,
                   prototype="15/16" if G == 16 else "", note="the group mean contains the rollout itself"),
        ]
    return rows


def _because(results, exact, sampled, unclear, numbers) -> str:
    found = {row.name: row for row in numbers}
    largest = max(float(results["apart"][name].max()) for name in exact) if exact else float("nan")
    broken = [name for name in results["traces"] if name not in exact]
    text = f"In exact expectation heads stay together to {largest:.0e} under {len(exact)} of " \
           f"{len(results['traces'])} switches"
    if broken:
        text += ", and separate under " + ", ".join(
            f"{name} ({float(results['apart'][name].max()):.2g} of their norm)" for name in broken)
    text += f". Sampled, the sign has no effect above the bound under: {', '.join(sampled) or 'none of them'}"
    text += f" (not resolved: {', '.join(unclear)})" if unclear else ""
    moved = [name for name in results["traces"] if name not in sampled and name not in unclear]
    return text + ". Nats per unit of log(m_S/m_F): " + "; ".join(
        f"{name} {_largest(found, name)}" for name in moved) + "."


def _largest(found: dict, name: str) -> str:
    rows = {short: found[f"{name}: d{short}/dlog(m_S/m_F), asym_pure_loo"] for _, short in PARTS}
    short = max(rows, key=lambda k: abs(rows[k].value) if differs(rows[k]) else -1.0)
    return f"{short} {shown(rows[short])}"


def figure(results: dict, path) -> None:
    from fade_sim.experiments.identity_figure import draw

    draw(results, path)
