"""What a reader asks first, answered from the numbers of scores.json alone: a short line per claim, and the questions
that take two of them. Where a quick run lacks a number there is no answer, never half of one.
"""

import textwrap

_UNTUNED = " for all"  # regimes of the claim on FADE that are repeated at one learning rate for every rule
IN_LIST = 260  # characters of a reason, where there is no shorter line


class Numbers(dict):
    """The numbers of a claim by name, as text for sentences. Raises KeyError on one that was not measured."""

    def __init__(self, entry: dict):
        super().__init__((n["name"], n) for n in entry["numbers"])

    def value(self, name: str) -> float:
        value = self[name]["value"]
        if not isinstance(value, (int, float)):
            raise KeyError(name)
        return value

    def said(self, name: str) -> str:
        """Value and interval; two digits of an exact number."""
        value, n = self.value(name), self[name]
        if n["low"] is None:
            return f"{value:.2g}"
        return f"{_signed(value)} [{_signed(n['low'])}, {_signed(n['high'])}]"

    def signs(self, end: str, start: str = "") -> tuple[int, int, int]:
        """(above 0, below 0, all) of the numbers, one per regime, whose name after the regime is start...end."""
        rows = [n for name, n in self.items() if name.endswith(end) and name.partition(": ")[2].startswith(start)
                and not name.partition(": ")[0].endswith(_UNTUNED)]
        known = [n for n in rows if n["low"] is not None]
        return sum(n["low"] > 0 for n in known), sum(n["high"] < 0 for n in known), len(rows)


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "\u2212")


def _decomposition(n: Numbers) -> str:
    error = n.said("tables rebuilt from sign, difficulty and scale: largest error")
    return (f"{n.value('rules with a table'):g} rules rebuilt from sign, difficulty and scale differ from "
            f"themselves by {error} at most. It ends where a rule reads more of a rollout than a reward of 0 or 1.")


def _identity(n: Numbers) -> str:
    apart = n.said("no switch: distance of heads in exact expectation")
    stale, ratio = (n.said(f"{switch}: dH_F/dlog(m_S/m_F), asym_pure_loo")
                    for switch in ("stale", "stale + importance ratio"))
    return (f"Without sampling noise, rules of any sign train the same policy (heads {apart} apart). Old rollouts "
            f"break it most: entropy within failures then changes by {stale} nats per unit of log(m_S/m_F); with the "
            f"importance ratio by {ratio}.")


def _entropy(n: Numbers) -> str:
    fresh, stale = n.said("head: slope of H at .7"), n.said("stale 10, lr 20: slope of H at .7")
    least = min(row["value"] for name, row in n.items()
                if name.endswith(": slope of H at .7") and row["low"] is not None)
    return (f"Change of entropy, in nats per unit of log(m_S/m_F), at solve rate .7: on-policy {fresh}, with rollouts "
            f"10 updates old {stale}: there it is the failure-biased rules that lose entropy. In the claimed "
            f"direction it is {_signed(least)} at most.")


def _rank(n: Numbers) -> str:
    fresh, stale, ratio = (n.said(f"{regime}: excess of asym_delta(0.3)")
                           for regime in ("on-policy, lr 40", "stale 30, lr 10", "ratio, lr 20"))
    return (f"Rank-1 energy of asym_delta(0.3) above that of dr_grpo: on-policy {fresh}, with rollouts 30 updates old "
            f"{stale}, and with the importance ratio {ratio} (lr 20).")


def _difficulty(n: Numbers) -> str:
    gain = {G: n.value(f"signal to noise at G = {G}: alpha 3, p = 0.1")
            / n.value(f"signal to noise at G = {G}: alpha 1, p = 0.1") for G in (8, 16, 64)}
    return (f"At solve rate .1 alpha 3 has {gain[8]:.2f} times the signal to noise of alpha 1 in groups of 8, "
            f"{gain[16]:.2f} in 16, {gain[64]:.2f} in 64. The threshold depends on what is called signal. Training "
            "trades pass@1 for pass@100.")


def _fade(n: Numbers) -> str:
    earlier, later, regimes = n.signs(" - fade", "steps to 98% of the best static peak")
    above, below, _ = n.signs("mean pass@1 over the run, fade - scale_ema")
    return (f"At the best learning rate of each, FADE peaks earlier than the best static rule in {earlier} of "
            f"{regimes} regimes and later in {later}. Against scale_ema, which is dr_grpo times FADE's own scale, its "
            f"mean pass@1 is higher in {above} and lower in {below}.")


def _generalisation(n: Numbers) -> str:
    above, below, regimes = n.signs("asym_delta(0.3) - dr_grpo", "held-out pass@1 at train")
    table = n.said("per-prompt table: held-out pass@1 at train pass@1 0.7, asym_delta(0.3) - dr_grpo")
    return (f"At equal training pass@1, held-out pass@1 of asym_delta(0.3) is below that of dr_grpo in {below} of "
            f"{regimes} regimes, with old rollouts, and above it in {above}: with a table per prompt {table}.")


_SHORT = {"decomposition": _decomposition, "identity": _identity, "entropy": _entropy, "rank": _rank,
          "difficulty": _difficulty, "fade": _fade, "generalisation": _generalisation}


def short(name: str, entry: dict) -> str:
    """One or two sentences on a claim; the start of its reason where they lack a number."""
    try:
        return _SHORT[name](Numbers(entry))
    except KeyError:
        return textwrap.shorten(entry["because"], IN_LIST, placeholder=" ...")


def questions(claims: dict) -> list[tuple[str, str]]:
    """(question, answer) pairs, those whose claims were run. claims: the contents of scores.json, by name."""
    out = []
    for question, answer, names in _QUESTIONS:
        try:
            out.append((question, answer(*(Numbers(claims[name]) for name in names))))
        except KeyError:
            continue
    return out


def _delta_entropy(entropy: Numbers, rank: Numbers) -> str:
    sign, rule = entropy.said("head: slope of H at .7"), entropy.said("head: slope of H at .7, asym_delta")
    old = rank.said("stale 30, lr 40: entropy (nats) of asym_delta(0.3) - dr_grpo")
    return (f"Not while rollouts are fresh: at equal solve rate, rules that differ in sign alone differ by {sign} "
            "nats of entropy per unit of log(m_S/m_F), asym_delta at equal mass, which shifts difficulty too, by "
            f"{rule}. With old rollouts and no correction a delta below 1 lowers it ({old} nats for delta .3, "
            "rollouts 30 updates old), by the instability below. A delta above 1, which the claim accuses, lowers it "
            "in neither case.")


def _delta_rank(n: Numbers) -> str:
    low, one, high = (n.value(f"stale 30, lr 40: rank-1 energy at the end, {rule}")
                      for rule in ("asym_delta(0.3)", "dr_grpo", "asym_delta(2)"))
    fresh, ratio = (n.said(f"{regime}: excess of asym_delta(0.3)") for regime in ("on-policy, lr 40", "ratio, lr 20"))
    return (f"Below 1, with old rollouts: at staleness 30, lr 40, delta .3 ends at a rank-1 energy of {low:.2f}, "
            f"dr_grpo at {one:.2f}, delta 2 at {high:.2f}. On-policy it does not ({fresh} against dr_grpo), nor with "
            f"the importance ratio at lr 20 ({ratio}).")


def _delta_when(n: Numbers) -> str:
    start = n.value("Lambda at which growth starts")
    low, middle, high = (n.said(f"excess rank-1 energy, Lambda {span}") for span in ("0 to 1.2", "1.2 to 4", "above 4"))
    return ("When Lambda, learning rate x staleness x the largest eigenvalue of E[(m_F - m_S) Fisher], is above 1: "
            f"growth starts at {start:.5f} (predicted: 1). In a grid of learning rates, staleness and delta the "
            f"excess rank-1 energy is {low} below Lambda 1.2, {middle} up to 4 and {high} beyond.")


def _in_my_run(n: Numbers) -> str:
    found = n.said("Lambda from sampled scores over the exact one, cross-validated")
    return (f"Lambda can be estimated from sampled gradients of single rollouts: here {found} times the exact one. "
            "`fade-llm train --probe.stability true` logs it for all trained parameters, with an alarm above 1 and "
            "the smallest safe delta.")


_QUESTIONS = (
    ("Does delta collapse entropy?", _delta_entropy, ("entropy", "rank")),
    ("Does delta collapse the rank of the update?", _delta_rank, ("rank",)),
    ("When does it?", _delta_when, ("rank",)),
    ("How do I know in a run of mine?", _in_my_run, ("rank",)),
)
