"""Recorded rollouts: every form read, every fault named on one line, every number by hand or by enumeration."""

import itertools
import json
import math
import re

import numpy as np
import pytest

from fade_sim.advantage import BatchStats, advantages, batch_scale, controller, make, resolve
from fade_sim.errors import InputError
from fade_sim.replay import HISTOGRAM, find, load, render, replay, shipped, to_dict

SHIPPED = "smollm2_135m_arithmetic"


@pytest.fixture(scope="module")
def arithmetic():
    return load(SHIPPED)


def write(tmp_path, text, name="r.jsonl"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def counts(*pairs, **more):
    """One {prompt_id, successes, attempts} line per pair."""
    return lines(*({"prompt_id": i, "successes": c, "attempts": n, **more} for i, (c, n) in enumerate(pairs)))


def record(tmp_path, *pairs, **more):
    return load(write(tmp_path, counts(*pairs, **more)))


# --- reading ----------------------------------------------------------------------------------------

SAME = {  # prompt 7: 1 of 3; prompt 9: 2 of 2
    "rollouts.jsonl": lines(*({"prompt_id": i, "reward": r} for i, r in ((7, 0), (9, 1), (7, 1), (7, 0), (9, 1)))),
    "bools.jsonl": lines({"prompt_id": 7, "rewards": [False, True, False]}, {"prompt_id": 9, "rewards": [1.0, True]}),
    "counts.jsonl": lines({"prompt_id": 7, "successes": 1, "attempts": 3},
                          {"prompt_id": 9, "successes": 2, "attempts": 2}),
    "rollouts.csv": "prompt_id,reward\n7,0\n9,1\n7,true\n7,0.0\n9,1.0\n",
    "lists.csv": 'prompt_id,rewards\n7,0 1 0\n9,"[1, 1]"\n',
    "counts.csv": "prompt_id,successes,attempts\r\n7,1,3\r\n\r\n9,2,2\r\n",
    "semicolons.csv": "attempts;prompt_id;successes\n3;7;1\n2;9;2\n",
    "no-suffix": "\ufeff\n\nprompt_id,successes,attempts\n7,1,3\n9,2,2",
    "blank-lines": '\n{"prompt_id": 7, "rewards": [0, 1, 0]}\n   \n\n{"prompt_id": 9, "rewards": [1, 1], "junk": NaN}',
}


@pytest.mark.parametrize("name", SAME)
def test_every_form_gives_the_same_groups(tmp_path, name):
    r = load(write(tmp_path, SAME[name], name))
    assert r.prompt_id == (7, 9)
    assert r.successes.tolist() == [1, 2]
    assert r.attempts.tolist() == [3, 2]
    assert (r.step, r.entropy, r.task) == (None, None, None)
    if r.rewards is not None:
        assert [x.tolist() for x in r.rewards] == [[0, 1, 0], [1, 1]]
    assert (r.rewards is None) == ("successes" in SAME[name])


def test_optional_keys_and_steps(tmp_path):
    # Two rollouts of one prompt at step 5: entropy is their mean, (1 + 2)/2.
    rows = [{"prompt_id": "a", "reward": 1, "step": 5, "entropy": 1.0, "task": "x", "answer": "no matter"},
            {"prompt_id": "a", "reward": 0, "step": 5, "entropy": 2.0, "task": "x"},
            {"prompt_id": "a", "reward": 0, "step": 6, "entropy": 4, "task": "x"}]
    r = load(write(tmp_path, lines(*rows)))
    assert r.prompt_id == ("a", "a")
    assert r.step.tolist() == [5, 6]
    assert r.entropy.tolist() == [1.5, 4.0]
    assert r.successes.tolist() == [1, 0]
    assert r.task == ("x", "x")


def test_csv_ids_are_integers_only_where_all_are(tmp_path):
    assert load(write(tmp_path, "prompt_id,reward\n01,0\n2,1\n", "a.csv")).prompt_id == ("01", "2")
    assert load(write(tmp_path, "prompt_id,reward\n-1,0\n2,1\n", "b.csv")).prompt_id == (-1, 2)


def test_a_list_of_rewards_may_hold_line_separators_in_its_neighbours(tmp_path):
    text = '{"prompt_id": 1, "rewards": [1, 0], "answers": ["a\u2028b", "c"]}\n'
    assert load(write(tmp_path, text)).successes.tolist() == [1]


GOOD = '{"prompt_id": 0, "reward": 1}\n'
GROUP = '{"prompt_id": 0, "rewards": [1, 0]}\n'
BAD = {
    "torn line": (GOOD + '{"prompt_id": 1, "rew',
                  "line 2: is not valid JSON (Unterminated string starting at at column 18), "
                  "expected one object a line (is the line torn?)"),
    "pretty-printed array": ("[\n" + GOOD + "]", "line 1: is not valid JSON (Expecting value at column 2), "
                             "expected one object a line (is the line torn?)"),
    "not an object": (GOOD + "\n[1, 2]\n", "line 3: is a list of 2, expected an object {...}"),
    "brackets by the thousand": ("[" * 100_000, "line 1: is not valid JSON, expected one object a line"),
    "empty": ("", "is empty, expected recorded rollouts, one JSON object or CSV row a line"),
    "blank": ("\n \n", "is empty, expected recorded rollouts, one JSON object or CSV row a line"),
    "binary": (GOOD.encode() + b"\x89PNG\xff\xfe\x00", "line 2: is not UTF-8 text (binary data?), "
               "expected a JSONL or CSV file"),
    "NUL bytes": (GOOD + "\n\0\0", "line 3: is not UTF-8 text (binary data?), expected a JSONL or CSV file"),
    "half a reward": (GOOD + '{"prompt_id": 0, "reward": 0.5}', "line 2: reward is 0.5, expected 0 or 1"),
    "reward 2": ('{"prompt_id": 0, "reward": 2}', "line 1: reward is 2, expected 0 or 1"),
    "reward -1": ('{"prompt_id": 0, "reward": -1}', "line 1: reward is -1, expected 0 or 1"),
    "reward NaN": (GOOD + '{"prompt_id": 0, "reward": NaN}',
                   "line 2: reward is NaN, expected 0 or 1 (leave out a rollout that was not scored)"),
    "reward inf": ('{"prompt_id": 0, "reward": Infinity}', "line 1: reward is Infinity, expected 0 or 1"),
    "reward null": (GOOD + '{"prompt_id": 0, "reward": null}',
                    "line 2: reward is null, expected 0 or 1 (leave out a rollout that was not scored)"),
    "reward text": ('{"prompt_id": 0, "reward": "1"}', 'line 1: reward is "1", expected 0 or 1'),
    "reward list": ('{"prompt_id": 0, "reward": [1, 0]}', "line 1: reward is a list of 2, expected 0 or 1"),
    "one of rewards": (GROUP + '{"prompt_id": 1, "rewards": [1, 0, 0.2]}',
                       "line 2: rewards[2] is 0.2, expected 0 or 1"),
    "no rewards": ('{"prompt_id": 1, "rewards": []}', "line 1: rewards is empty, expected at least one reward"),
    "rewards a number": ('{"prompt_id": 1, "rewards": 1}', "line 1: rewards is 1, expected a list of 0 and 1"),
    "successes above attempts": (counts((1, 4), (5, 4)), "line 2: successes is 5, expected at most attempts = 4"),
    "no attempts": (counts((0, 0)), "line 1: attempts is 0, expected an integer of at least 1"),
    "negative": (counts((-1, 4)), "line 1: successes is -1, expected an integer of at least 0"),
    "half a success": (counts((0.5, 4)), "line 1: successes is 0.5, expected an integer of at least 0"),
    "infinite attempts": ('{"prompt_id": 0, "successes": 1, "attempts": 1e999}',
                          "line 1: attempts is Infinity, expected an integer of at least 1"),
    "mixed forms": (GOOD + GROUP, "line 2: has rewards, expected reward as on line 1"),
    "two forms": ('{"prompt_id": 0, "reward": 1, "rewards": [1]}',
                  "line 1: has both reward and rewards, expected one of them"),
    "prompt twice": (counts((1, 4)) * 2, "line 2: prompt_id 0 was on line 1 already, expected once, "
                     "or a step that tells the two apart"),
    "prompt twice in a step": (counts((1, 4), step=3) * 2,
                               "line 2: prompt_id 0 of step 3 was on line 1 already, expected once"),
    "misspelt id": ('{"promt_id": 0, "reward": 1}', "line 1: no prompt_id; found 'promt_id', is it meant?"),
    "another name for id": ('{"uid": 0, "reward": 1}', "line 1: no prompt_id; found 'uid', is it meant?"),
    "another name for reward": ('{"prompt_id": 0, "score": 1}', "line 1: no reward; found 'score', is it meant?"),
    "capitals": ('{"prompt_id": 0, "Rewards": [1]}', "line 1: no rewards; found 'Rewards', is it meant?"),
    "successes alone": ('{"prompt_id": 0, "successes": 1, "n": 4}', "line 1: no attempts; found 'n', is it meant?"),
    "no outcome": ('{"prompt_id": 0, "answer": "x"}', "line 1: no outcome, expected reward, rewards, or successes and "
                   "attempts; found prompt_id, answer"),
    "a line break in a key": ('{"reward": 0, "z\\nz": "x"}', "line 1: no prompt_id; found reward, 'z\\nz'"),
    "no id": ('{"reward": 0, "zzz": "x"}', "line 1: no prompt_id; found reward, zzz"),
    "id true": ('{"prompt_id": true, "reward": 0}', "line 1: prompt_id is true, expected an integer or a string"),
    "id 1.5": ('{"prompt_id": 1.5, "reward": 0}', "line 1: prompt_id is 1.5, expected an integer or a string"),
    "ids of two types": (GOOD + '{"prompt_id": "0", "reward": 1}',
                         'line 2: prompt_id is "0", expected an integer as on line 1'),
    "step now and then": (GOOD + '{"prompt_id": 1, "reward": 1, "step": 0}',
                          "line 2: has step, unlike line 1, expected on all lines or none"),
    "entropy now and then": ('{"prompt_id": 1, "reward": 1, "entropy": 1}\n' + GOOD,
                             "line 2: has no entropy, unlike line 1, expected on all lines or none"),
    "negative entropy": ('{"prompt_id": 1, "reward": 1, "mean_token_entropy": -0.1}',
                         "line 1: mean_token_entropy is -0.1, expected a non-negative number of nats"),
    "entropy NaN": ('{"prompt_id": 1, "reward": 1, "entropy": NaN}',
                    "line 1: entropy is NaN, expected a non-negative number of nats"),
    "step 1.5": ('{"prompt_id": 1, "reward": 1, "step": 1.5}',
                 "line 1: step is 1.5, expected an integer of at least 0"),
    "two tasks": ('{"prompt_id": 0, "reward": 1, "task": "a"}\n{"prompt_id": 0, "reward": 1, "task": "b"}',
                  'line 2: prompt_id 0 has task "b", and "a" on line 1'),
}
BAD_CSV = {
    "reward text": ("prompt_id,reward\n0,1\n0,yes\n", 'line 3: reward is "yes", expected 0 or 1'),
    "reward nan": ("prompt_id,reward\n0,nan\n", 'line 2: reward is "nan", expected 0 or 1 '
                   "(leave out a rollout that was not scored)"),
    "reward missing": ("prompt_id,reward\n\n0,\n", 'line 3: reward is "", expected 0 or 1 '
                       "(leave out a rollout that was not scored)"),
    "torn row": ("prompt_id,successes,attempts\n0,1,4\n1,2\n", "line 3: has 2 cells, expected 3 as in the header"),
    "unclosed quote": ('prompt_id,reward\n0,1\n"1,0\n', "line 3: is not valid CSV (unexpected end of data)"),
    "header only": ("prompt_id,reward\n", "has a header but no rollouts"),
    "no header": ("0,1\n1,0\n", "line 2: no prompt_id; found 0, 1"),
    "column twice": ("prompt_id,reward,reward\n0,1,1\n", "line 1: column 'reward' comes twice"),
    "a run of digits": ("prompt_id,rewards\n0,0110\n", 'line 2: rewards[0] is "0110", expected 0 or 1'),
    "broken list": ('prompt_id,rewards\n0,"[0, 1"\n', 'line 2: rewards is "[0, 1", expected a list of 0 and 1'),
    "misspelt": ("prompt_id,sucesses,attempts\n0,1,4\n", "line 2: no successes; found 'sucesses', is it meant?"),
    "line after a quoted line break": ('prompt_id,reward,note\n0,1,"a\nb"\n0,7,c\n',
                                       'line 4: reward is "7", expected 0 or 1'),
}


@pytest.mark.parametrize(("name", "suffix"), [(n, ".jsonl") for n in BAD] + [(n, ".csv") for n in BAD_CSV])
def test_bad_input_is_one_line_with_file_line_and_expectation(tmp_path, name, suffix):
    text, message = BAD[name] if suffix == ".jsonl" else BAD_CSV[name]
    path = write(tmp_path, text, f"r{suffix}")
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(caught.value) == f"{path}: {message}"


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_damaged_files_are_read_or_refused_on_one_line(tmp_path, suffix):
    # 300 random cuts, swaps and insertions: never another exception, never a reward outside {0, 1}.
    rng = np.random.default_rng(3)
    good = (lines(*({"prompt_id": i // 3, "reward": i % 2, "step": i, "entropy": 0.5, "task": "é"} for i in range(9)))
            if suffix == ".jsonl" else "prompt_id,rewards,step\n0,1 0 1,1\n1,\"[0, 1]\",2\n2,1;1,3\n").encode()
    refused = 0
    for _ in range(300):
        data = bytearray(good)
        for _ in range(rng.integers(1, 4)):
            a, b = sorted(rng.integers(0, len(data) + 1, 2))
            data[a:b] = [b"", rng.bytes(2), data[a:b][::-1], b'"', b"\n", b"NaN", b"9" * 5000][rng.integers(7)]
        path = write(tmp_path, bytes(data), f"r{suffix}")
        try:
            r = load(path)
        except InputError as error:
            refused += 1
            assert str(error).startswith(f"{path}: ")
            assert len(str(error).splitlines()) == 1
            assert len(str(error)) < len(str(path)) + 250
        else:
            assert set(np.concatenate(r.rewards).tolist()) <= {0, 1}
            assert (r.attempts >= 1).all()
    assert refused > 200


def test_missing_file_and_directory(tmp_path):
    with pytest.raises(InputError) as caught:
        load(tmp_path / "none.jsonl")
    assert str(caught.value).startswith(f"{tmp_path / 'none.jsonl'}: no such file")
    with pytest.raises(InputError) as caught:
        load(tmp_path)
    assert str(caught.value) == f"{tmp_path}: is a directory, expected a JSONL or CSV file"


def test_find_prefers_a_file_and_names_the_nearest_recording(tmp_path, monkeypatch):
    assert SHIPPED in shipped()
    assert find(SHIPPED).is_file()
    assert find(SHIPPED) == find(f"{SHIPPED}.jsonl")
    with pytest.raises(InputError) as caught:
        find("smollm_arithmetic")
    assert str(caught.value) == ("smollm_arithmetic: no such file, nor a recording that comes with the package; "
                                 f"did you mean '{SHIPPED}'?")
    monkeypatch.chdir(tmp_path)
    (tmp_path / SHIPPED).mkdir()  # a directory of that name does not hide it
    assert find(SHIPPED).suffix == ".jsonl"
    (tmp_path / SHIPPED).rmdir()
    write(tmp_path, GOOD, SHIPPED)
    assert len(load(SHIPPED)) == 1  # a file of that name does


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
    assert [row.k for row in report.pass_at_k] == [1, 10]  # 64 rollouts: no pass@100
    assert any("pass@k above k = 64 is left out" in note for note in report.notes)
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
    assert [row.k for row in report.pass_at_k] == [1]  # the smallest group has 3


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
