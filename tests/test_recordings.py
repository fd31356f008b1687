"""Recorded rollouts: every form is read, every fault is named on one line."""


import numpy as np
import pytest
from recording_files import counts, lines, write

from fade_sim.errors import InputError
from fade_sim.replay import find, load, shipped

SHIPPED = "smollm2_135m_arithmetic"


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
                             "expected one object a line, not one document over many lines"),
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
                          "line 1: attempts is Infinity, expected an integer of at least 1 and at most 1000000000"),
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
