"""Recorded rollouts under every rule: every number by hand or by enumeration."""

import itertools
import json
import math
import re

import numpy as np
import pytest
from recording_files import counts, lines, record, write

from fade_sim.advantage import BatchStats, advantages, batch_scale, controller, make, resolve
from fade_sim.errors import InputError
from fade_sim.replay import HISTOGRAM, load, render, replay, to_dict

SHIPPED = "smollm2_135m_arithmetic"


@pytest.fixture(scope="module")
def arithmetic():
    return load(SHIPPED)


# --- the shipped recording --------------------------------------------------------------------------


def test_shipped_recording(arithmetic):
    report = replay(arithmetic, ["dr_grpo"], group_size=8)
    assert (report.prompts, report.rollouts) == (180, 11520)
    assert report.solve_rate == pytest.approx(0.385, abs=5e-4)
    by_kind = {"add 1x1": 0.799, "add 2x1": 0.173, "add 2x2": 0.075,  # .80 .17 .08
               "mul 1x1": 0.807, "mul 2x1": 0.358, "add sub": 0.098}  # .81 .36 .10
    assert {t.task: t.solve_rate for t in report.tasks} == pytest.approx(by_kind, abs=5e-4)
    assert [t.groups for t in report.tasks] == [30] * 6
    assert (report.all_fail, report.all_pass) == (36 / 180, 3 / 180)  # 20%, 1.7%
    assert (report.histogram[0], report.histogram[-1], sum(report.histogram)) == (36, 3, 180)
    assert report.pass_at_k[0].estimate == pytest.approx(report.solve_rate)  # pass@1 is the solve rate
    assert [row.k for row in report.pass_at_k] == [1, 10, 64]  # 64 rollouts: no pass@100
    above = replay(arithmetic, group_size=8, k=(1, 100))
    assert [row.k for row in above.pass_at_k] == [1]
    assert any("pass@k above k = 64 is left out" in note for note in above.notes)
    # alpha = 1.5 (1 - .38498)/.38498 = 2.3963; without steps Hhat = H0 and H* = H0/2, so delta = 1.
    assert report.fade.alpha == pytest.approx(2.3963, abs=1e-4)
    assert report.fade.delta == 1.0
    assert any("delta is 1 by construction" in note for note in report.notes)
    assert replay(arithmetic, ["dr_grpo"]).group_size == 16  # recorded at 64


def test_h_star_moves_delta(arithmetic):
    # delta = 1 + 1.24324 - 1.8 = .44324; failures weigh 1/.44324 as much more.
    report = replay(arithmetic, ["fade"], 8, controller_state=controller.init(h_star=1.8))
    assert report.fade.delta == pytest.approx(0.44324, abs=1e-5)
    assert report.rules[0].sign_ratio == pytest.approx(0.44324, abs=1e-5)


# --- numbers by hand --------------------------------------------------------------------------------


def test_masses_by_hand(tmp_path):
    # Groups of 4 with 0, 1, 2, 3, 4 successes. dr_grpo: m_S = m_F = (c/4)(1 - c/4) = 0, 3, 4, 3, 0 sixteenths:
    # mean 10/80. By bin (solve rates 0 | .25 | .5 | .75 and 1): 0, 6, 8, 6 eightieths of .25.
    report = replay(record(tmp_path, *((c, 4) for c in range(5))), ["dr_grpo", "asym_delta", "reinforce", "nsr"])
    grpo, asym, reinforce, nsr = report.rules
    assert report.group_size == 4
    assert (grpo.m_S, grpo.m_F, grpo.sign_ratio) == pytest.approx((0.125, 0.125, 1.0))
    assert grpo.mass == pytest.approx((0, 0.075, 0.1, 0.075))
    assert grpo.share == pytest.approx((0, 0.3, 0.4, 0.3))
    assert (asym.m_S, asym.m_F, asym.sign_ratio) == pytest.approx((0.125, 0.25, 0.5))
    assert (reinforce.m_S, reinforce.m_F, reinforce.sign_ratio) == (0.5, 0.0, math.inf)  # mean solve rate .5
    assert reinforce.share == pytest.approx((0, 0.1, 0.2, 0.7))  # .25, .5, .75 + 1 of 2.5
    assert (nsr.m_S, nsr.m_F, nsr.sign_ratio) == (0.0, 0.5, 0.0)
    assert report.difficulty == (1, 1, 1, 2)
    assert (report.all_fail, report.all_pass) == (0.2, 0.2)
    assert (report.predicted_all_fail, report.predicted_all_pass) == (0.2, 0.2)  # G as recorded: the same groups


@pytest.mark.parametrize("name", ["dr_grpo", "rloo", "power", "grpo", "asym_pure_loo", "reinforce_pm1"])
def test_masses_equal_the_enumeration_of_all_training_groups(tmp_path, name):
    # Every group of 3 of the 6 recorded rollouts of each prompt, weighed by `advantages` itself.
    method, G = make(name), 3
    pairs = [(0, 6), (1, 6), (4, 6), (6, 6)]
    row = replay(record(tmp_path, *pairs), [method], group_size=G).rules[0]
    m_S, m_F, uniform = [], [], []
    for c, n in pairs:
        for group in itertools.combinations([1.0] * c + [0.0] * (n - c), G):
            a, r = advantages(np.array([group]), None, method)[0], np.array(group)
            m_S.append((a * r).sum() / G)
            m_F.append(-(a * (1 - r)).sum() / G)
            uniform.append(r.min() == r.max())
    assert (row.m_S, row.m_F) == pytest.approx((np.mean(m_S), np.mean(m_F)), abs=1e-14)
    report = replay(record(tmp_path, *pairs), [method], group_size=G)
    assert report.predicted_all_fail + report.predicted_all_pass == pytest.approx(np.mean(uniform), abs=1e-14)


def test_predicted_share_of_uniform_groups_is_unbiased(tmp_path):
    # Known p = .2, G = 2: .2^2 + .8^2 = .68. Recorded as all outcomes of 4 rollouts in proportion
    # C(4,c) .2^c .8^(4-c) * 625 = 256, 256, 96, 16, 1 prompts; plugging c/4 in gives .76.
    pairs = [(c, 4) for c, times in enumerate((256, 256, 96, 16, 1)) for _ in range(times)]
    report = replay(record(tmp_path, *pairs), ["dr_grpo"], group_size=2)
    assert report.predicted_all_fail == pytest.approx(0.64, abs=1e-12)
    assert report.predicted_all_pass == pytest.approx(0.04, abs=1e-12)
    assert report.rules[0].m_S == pytest.approx(0.08, abs=1e-12)  # p q (1 - 1/G) = .16/2


def test_histogram_edges(tmp_path):
    # 1/10 is in (0, .1], 3/10 in (.2, .3] although 10 * .3 is not 3 in floats, 19/20 in (.9, 1).
    report = replay(record(tmp_path, (0, 10), (1, 10), (3, 10), (9, 10), (19, 20), (10, 10)), ["dr_grpo"])
    filled = {HISTOGRAM[i]: count for i, count in enumerate(report.histogram) if count}
    assert filled == {"0": 1, "(0, 0.1]": 1, "(0.2, 0.3]": 1, "(0.8, 0.9]": 1, "(0.9, 1)": 1, "1": 1}


def test_group_size_default_and_short_groups(tmp_path):
    # Sizes 8, 8, 8, 3: trained at 8, the group of 3 left out and said so, but in the mean solve rate.
    report = replay(record(tmp_path, (4, 8), (2, 8), (8, 8), (3, 3)), ["dr_grpo"])
    assert (report.group_size, report.left_out) == (8, 1)
    assert report.solve_rate == pytest.approx((0.5 + 0.25 + 1 + 1) / 4)
    assert report.rules[0].m_S == pytest.approx((0.25 + 0.1875 + 0) / 3)
    assert "1 of 4 groups have fewer than 8 rollouts: in none of the masses" in report.notes
    assert [row.k for row in report.pass_at_k] == [1, 3]  # the smallest group has 3


def test_fade_without_entropy_has_alpha_and_no_delta(tmp_path):
    # phat = .5: alpha 1.5; no entropy: delta unknown, taken as 1 and said so.
    report = replay(record(tmp_path, (1, 4), (3, 4)), ["fade", make("power", alpha=1.5)])
    assert (report.fade.phat, report.fade.alpha, report.fade.delta, report.fade.hhat) == (0.5, 1.5, None, None)
    assert report.rules[0].mass == report.rules[1].mass
    assert "no entropy is recorded: the weights take delta as 1" in report.notes
    ablated = replay(record(tmp_path, (1, 4), (3, 4)), ["fade"], controller_state=controller.init(ablation="no_delta"))
    assert ablated.fade.delta == 1.0
    with pytest.raises(InputError, match=r"has no entropy, and controller\.ablation = entropy_only needs it"):
        replay(record(tmp_path, (1, 4)), ["fade"], controller_state=controller.init(ablation="entropy_only"))


def test_scale_controls_use_the_ratio_of_the_batch(tmp_path):
    recording = record(tmp_path, (1, 8), (3, 8), (7, 8), entropy=1.0)
    report = replay(recording, ["dr_grpo", "fade", "scale_only", "fade_unit", "scale_ema"])
    plain, fade, scale_only, unit, ema = report.rules
    batch = BatchStats(recording.successes, recording.attempts)
    ratio = batch_scale(resolve(make("fade"), report.fade.alpha, report.fade.delta), make("dr_grpo"), batch)
    assert 0 < ratio < 1  # alpha > 1 shrinks
    assert sum(scale_only.mass) == pytest.approx(sum(fade.mass))
    assert scale_only.mass == pytest.approx([ratio * x for x in plain.mass])
    assert unit.mass == pytest.approx([x / ratio for x in fade.mass])
    assert sum(unit.mass) == pytest.approx(sum(plain.mass))
    assert ema.mass == pytest.approx(scale_only.mass)  # a single batch starts the average


# --- steps ------------------------------------------------------------------------------------------

STEPPED = lines(*(
    {"prompt_id": i, "successes": c, "attempts": 4, "step": step, "entropy": h}
    for step, h, row in ((10, 0.5, (4, 4)), (2, 2.0, (1, 3))) for i, c in enumerate(row)  # not in order
))


def test_trace_by_hand(tmp_path):
    # Step 2: solve rate .5, entropy 2 = H0 = Hhat; phat stays .5, alpha 1.5, delta = 1 + 2 - 2.2 = .8.
    # Step 10: solve rate 1, entropy .5; phat = .98 * .5 + .02 = .51, alpha = 1.5 * .49/.51 = 1.44118,
    # Hhat = .98 * 2 + .02 * .5 = 1.97, delta = .77.
    report = replay(load(write(tmp_path, STEPPED)), ["fade"], controller_state=controller.init(h_star=2.2))
    first, second = report.trace
    assert (first.step, first.groups, first.solve_rate, first.entropy) == (2, 2, 0.5, 2.0)
    assert (first.gains.phat, first.gains.alpha, first.gains.delta) == pytest.approx((0.5, 1.5, 0.8))
    assert (second.step, second.solve_rate, second.entropy) == (10, 1.0, 0.5)
    assert (second.gains.phat, second.gains.alpha) == pytest.approx((0.51, 1.5 * 0.49 / 0.51))
    assert (second.gains.hhat, second.gains.delta) == pytest.approx((1.97, 0.77))
    # Each batch at its own gains: sqrt(.75) * 3/16 + sqrt(.25) * 3/16 at step 2, nothing at step 10; 4 groups.
    m_S = (math.sqrt(0.75) + 0.5) * 3 / 16 / 4
    row = report.rules[0]
    assert (row.m_S, row.m_F, row.sign_ratio) == pytest.approx((m_S, m_S / 0.8, 0.8))
    # The file as a whole: phat .75 -> alpha 1; Hhat 1.25 -> delta = .3 at the floor (.05 below it).
    assert (report.fade.phat, report.fade.alpha, report.fade.delta) == pytest.approx((0.75, 1.0, 0.3))
    assert (report.prompts, report.groups) == (2, 4)


def test_trace_without_entropy_and_scale_over_steps(tmp_path):
    rows = [{"prompt_id": 0, "successes": c, "attempts": 4, "step": s} for s, c in enumerate((1, 4, 2))]
    report = replay(load(write(tmp_path, lines(*rows))), ["dr_grpo", "fade", "scale_ema", "scale_only"])
    assert [t.gains.delta for t in report.trace] == [None] * 3
    assert [t.entropy for t in report.trace] == [None] * 3
    # phat .5 -> .495 -> .5051 -> .504998; alpha = 1.5 (1-phat)/phat: 1.53030 at step 0, 1.47030 at step 2.
    phat = [0.495, 0.5051, 0.504998]
    assert [t.gains.phat for t in report.trace] == pytest.approx(phat)
    alpha = [1.5 * (1 - p) / p for p in phat]
    # Masses of fade over dr_grpo: .75^(alpha-1) at step 0, none at step 1, .5^(alpha-1) at step 2.
    ratio = (0.75 ** (alpha[0] - 1), 0.5 ** (alpha[2] - 1))
    smooth = (ratio[0], 0.95 * ratio[0] + 0.05 * ratio[1])  # the batch without signal keeps it
    plain, fade, ema, only = (row.m_S for row in report.rules)
    assert plain == pytest.approx((3 / 16 + 4 / 16) / 3)
    assert fade == pytest.approx((ratio[0] * 3 / 16 + ratio[1] * 4 / 16) / 3)
    assert only == pytest.approx(fade)
    assert ema == pytest.approx((smooth[0] * 3 / 16 + smooth[1] * 4 / 16) / 3)


def test_pass_at_k_clusters_a_prompt_over_its_steps(tmp_path):
    # The same six prompts at two steps: no more prompts than at one step.
    pairs = [(0, 4), (1, 4), (2, 4), (4, 4), (4, 4), (1, 4)]
    text = counts(*pairs, step=0) + counts(*pairs, step=1)
    twice = replay(load(write(tmp_path, text)), ["dr_grpo"]).pass_at_k[0]
    once = replay(record(tmp_path, *pairs), ["dr_grpo"]).pass_at_k[0]
    assert (twice.estimate, twice.low, twice.high) == pytest.approx((once.estimate, once.low, once.high))


# --- limits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kwargs", "message"), [
    ({"group_size": 9}, "group_size is 9, expected at most 8, the largest recorded group"),
    ({"group_size": 0}, "group_size is 0, expected an integer of at least 1"),
    ({"group_size": 2.5}, "group_size is 2.5, expected an integer of at least 1"),
    ({"k": (0,)}, "k is 0, expected an integer of at least 1"),
    ({"methods": []}, "methods is empty, expected at least one method"),
    ({"methods": ["grpoo"]}, "unknown method 'grpoo'; did you mean 'grpo'?"),
    ({"methods": ["power_unbiased"], "group_size": 2},
     "power_unbiased: alpha is 2, expected at most group_size - 1 = 1"),
])
def test_replay_refuses(tmp_path, kwargs, message):
    with pytest.raises(InputError) as caught:
        replay(record(tmp_path, (1, 8), (3, 8)), **kwargs)
    assert str(caught.value) == message


def test_a_rule_that_is_undefined_at_the_group_size_is_left_out_with_a_note(tmp_path):
    report = replay(record(tmp_path, (1, 8), (3, 8)), group_size=2)
    assert "power_unbiased(2)" not in [row.rule for row in report.rules]
    assert "power_unbiased: alpha is 2, expected at most group_size - 1 = 1: left out" in report.notes


def test_single_rollouts_are_pointed_out(tmp_path):
    report = replay(record(tmp_path, (1, 1), (0, 1), (0, 1)), ["dr_grpo", "reinforce"])
    assert "every group has a single rollout: are the prompt ids unique per rollout?" in report.notes
    assert (report.rules[0].m_S, report.rules[1].m_S) == (0.0, pytest.approx(1 / 3))
    assert math.isnan(report.rules[0].sign_ratio)


def test_all_failed(tmp_path):
    report = replay(record(tmp_path, (0, 4), (0, 4), entropy=0.0))
    assert report.fade.alpha == 3.0  # no division by phat = 0
    row = next(r for r in report.rules if r.rule == "fade")
    assert row.m_S == row.m_F == 0.0
    assert all(math.isnan(s) for s in row.share)
    assert report.histogram[0] == 2


# --- output -----------------------------------------------------------------------------------------


def test_to_dict_is_strict_json(tmp_path):
    report = replay(record(tmp_path, (0, 4)), ["dr_grpo", "reinforce"])
    assert math.isnan(report.pass_at_k[0].low)  # a single prompt
    back = json.loads(json.dumps(to_dict(report), allow_nan=False))
    assert back["pass_at_k"][0] == {"k": 1, "estimate": 0.0, "low": None, "high": None}
    assert back["rules"][0]["sign_ratio"] is None
    assert len(back["histogram"]) == len(back["histogram_bins"])
    assert to_dict(replay(record(tmp_path, (2, 4)), ["reinforce"]))["rules"][0]["sign_ratio"] == "inf"


def printed(report, encoding="utf-8"):
    import io

    from rich.console import Console

    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="strict")
    render(report, Console(file=stream, width=80, force_terminal=False))
    stream.flush()
    return raw.getvalue().decode(encoding)


def test_render_fits_80_columns_and_says_the_numbers(arithmetic):
    text = printed(replay(arithmetic, group_size=8))
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert text.startswith("180 prompts, 180 groups, 11520 rollouts\nmean solve rate 0.385, entropy 1.243 nats\n")
    assert re.search(r"^ +0 +36  █+$", text, re.MULTILINE)
    assert re.search(r"^k = 10 +0\.646 +0\.\d{3} to 0\.\d{3}", text, re.MULTILINE)
    assert re.search(r"^power_asym\(alpha=2, delta=0\.5\) +0\.\d{4} +0\.\d{4} +0\.5 ", text, re.MULTILINE)
    assert "phat 0.385, alpha 2.396, delta 1.000" in text


def test_render_in_ascii_with_steps_and_brackets_in_names(tmp_path):
    rows = [{"prompt_id": i, "successes": i % 5, "attempts": 4, "step": s, "task": "[red]x[/]"}
            for s in range(30) for i in range(3)]
    text = printed(replay(load(write(tmp_path, lines(*rows)))), "ascii")
    assert "[red]x[/]" in text
    assert "FADE over 30 recorded steps" in text
    shown = [int(step) for step in re.findall(r"^(\d+) +3 +0\.250", text, re.MULTILINE)]
    assert shown == [0, 3, 6, 10, 13, 16, 19, 23, 26, 29]  # evenly spread, both ends
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
