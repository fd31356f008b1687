"""What verl, TRL, prime-rl and open-instruct write: field names as in their sources, solve rates by hand."""

import json
import sys
import tracemalloc

import numpy as np
import pytest
from recording_files import lines, write

from fade_sim import traces
from fade_sim.cli import main
from fade_sim.errors import InputError
from fade_sim.replay import replay


def put(folder, files):
    """Files of a run: {name: rows, or text}."""
    for name, rows in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = lines(*rows) if isinstance(rows, list) else rows
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def rows_of(recording):
    """[(step, successes, attempts)] in order."""
    steps = [None] * len(recording) if recording.step is None else recording.step.tolist()
    return list(zip(steps, recording.successes.tolist(), recording.attempts.tolist(), strict=True))


def refused(*args, **kwargs):
    with pytest.raises(InputError) as caught:
        traces.load(*args, **kwargs)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


# --- verl -------------------------------------------------------------------------------------------


def verl(prompt, score, step, **more):
    return {"input": f"user\n{prompt}", "output": "so \u2028 it is", "gts": "4", "score": score, "step": step, **more}


def test_verl_by_prompt_steps_in_numeric_order(tmp_path):
    # Trainer without uids, rows shuffled by its balancing. Step 9: a 1 of 2, b 0 of 2; step 10: a 2 of 2, b 1 of 2.
    run = put(tmp_path, {
        "10.jsonl": [verl("a", 1.0, 10), verl("b", 0.0, 10), verl("b", 1.0, 10), verl("a", 1.0, 10)],
        "9.jsonl": [verl("a", 1.0, 9), verl("b", 0.0, 9), verl("a", 0.0, 9), verl("b", 0.0, 9)],
        "config.yaml": "no rollouts",
    })
    recording = traces.load(run)
    assert rows_of(recording) == [(9, 1, 2), (9, 0, 2), (10, 2, 2), (10, 1, 2)]
    assert recording.prompt_id[0] == recording.prompt_id[2] != recording.prompt_id[1] == recording.prompt_id[3]
    assert recording.notes == ("read as verl: 2 files, reward from score",
                               "no group id is recorded: rollouts of one prompt within a step are one group")
    # dr_grpo: (c/2)(1 - c/2) = 1/4, 0, 0, 1/4; phat .5 -> .98 .5 + .02 .25 -> .98 .495 + .02 .75
    report = replay(recording, ["dr_grpo"])
    assert report.rules[0].m_S == pytest.approx(0.125)
    assert [row.step for row in report.trace] == [9, 10]
    assert [row.gains.phat for row in report.trace] == pytest.approx([0.495, 0.5001])


def test_verl_v1_uids_padding_and_rollouts_of_several_outputs(tmp_path):
    # Two groups of one prompt text: u1 1 of 2, u2 1 of 1. Session u1_1 has two outputs, both with its reward.
    pad = "pad" + "0af3" * 8
    run = put(tmp_path, {"1.jsonl": [
        verl("", 0.0, 1, uid=f"{pad}_0_0"), verl("", 0.0, 1, uid=f"{pad}_1_0"),
        verl("a", 1.0, 1, uid="u1_0_0"), verl("a", 0.0, 1, uid="u1_1_0"), verl("a so far", 0.0, 1, uid="u1_1_1"),
        verl("a", 1.0, 1, uid="u2_0_0")]})
    recording = traces.load(run)
    assert rows_of(recording) == [(1, 1, 2), (1, 1, 1)]
    assert len(set(recording.prompt_id)) == 1
    assert recording.notes[1:] == ("lines that only fill up a batch, left out: 2",
                                   "earlier outputs of a rollout with several, left out: 1")


def test_verl_a_uid_that_comes_again_at_another_step_is_another_group(tmp_path):
    run = put(tmp_path, {"1.jsonl": [verl("a", 1, 1, uid="u_0_0"), verl("a", 0, 1, uid="u_1_0")],
                         "2.jsonl": [verl("a", 1, 2, uid="u_0_0"), verl("a", 1, 2, uid="u_1_0")]})
    assert rows_of(traces.load(run)) == [(1, 1, 2), (2, 2, 2)]


def test_verl_other_rewards(tmp_path):
    # DAPO's score is -1 or 1, with its accuracy beside it (as text where it was a NumPy boolean).
    rows = [verl("a", -1.0, 1, acc=False), verl("a", 1.0, 1, acc=True), verl("a", 1.0, 1, acc="True")]
    run = put(tmp_path, {"1.jsonl": rows})
    where = f"{run / '1.jsonl'}: line 1"
    assert refused(run) == (f"{where}: score is -1.0, expected 0 or 1; --threshold T makes a reward of at least T a "
                            "success, or read another field: --reward acc")
    assert rows_of(traces.load(run, reward="acc")) == [(1, 2, 3)]
    recording = traces.load(run, threshold=1.0)
    assert rows_of(recording) == [(1, 2, 3)]
    assert "score is from -1 to 1: at least 1 is a success" in recording.notes
    assert refused(run, reward="reward").startswith(f"{where}: no reward, expected a line of verl; found")


def test_unjudged_rollouts_leave_their_group(tmp_path):
    run = put(tmp_path, {"1.jsonl": [verl("a", 1.0, 1), verl("a", None, 1), verl("a", float("nan"), 1),
                                     verl("b", None, 1), verl("a", 0, 1), verl("c", None, 1), verl("c", 0, 1)]})
    recording = traces.load(run)
    assert rows_of(recording) == [(1, 1, 2), (1, 0, 1)]
    assert recording.notes[-2:] == ("rollouts that were not judged, left out: 4",
                                    "groups that are gone, no rollout of theirs was judged: 1")
    run = put(tmp_path / "none", {"1.jsonl": [verl("a", None, 1)]})
    assert refused(run) == f"{run}: holds no judged rollouts (rollouts that were not judged: 1)"


def test_entropy_is_read_where_every_rollout_has_it(tmp_path):
    run = put(tmp_path, {"1.jsonl": [verl("a", 1, 1, entropy=0.5), verl("a", 0, 1, entropy=1.5)]})
    assert traces.load(run).entropy.tolist() == [1.0]
    run = put(tmp_path / "some", {"1.jsonl": [verl("a", 1, 1, entropy=0.5), verl("a", 0, 1)]})
    recording = traces.load(run)
    assert recording.entropy is None and "entropy is recorded for 1 of 2 rollouts: not used" in recording.notes


def test_a_prompt_that_comes_twice_in_a_step_is_pointed_out(tmp_path):
    rows = [verl(prompt, 1, 1) for prompt in "abc" for _ in range(2)] + [verl("d", i % 2, 1) for i in range(4)]
    notes = traces.load(put(tmp_path, {"1.jsonl": rows})).notes
    assert notes[-1] == "groups of at least twice the usual 2 rollouts (a prompt more than once in a step?): 1"
    put(tmp_path, {"1.jsonl": rows[:-1]})
    assert "twice" not in traces.load(tmp_path).notes[-1]


def test_files_are_read_as_streams(tmp_path):
    # 40 MB in lines of 20 kB: what is held at once is far below.
    run = put(tmp_path, {"1.jsonl": lines(*(verl("a" * 19_900 + str(i % 50), i % 2, 1) for i in range(2000)))})
    assert (run / "1.jsonl").stat().st_size > 39e6
    tracemalloc.start()
    recording = traces.load(run)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(recording), int(recording.attempts.sum())) == (50, 2000)
    assert peak < 3e6


# --- a run that was killed, files that are damaged ----------------------------------------------------


def test_a_cut_off_last_line_is_left_out_with_a_note(tmp_path):
    whole = lines(verl("a", 1, 1), verl("a", 0, 1))
    cut = whole.encode() + json.dumps(verl("é", 1, 1), ensure_ascii=False).encode()[:15]  # inside the é
    run = put(tmp_path, {"1.jsonl": cut, "2.jsonl": b""})
    recording = traces.load(run)
    assert rows_of(recording) == [(1, 1, 2)]
    assert recording.notes[-2:] == (f"{run / '1.jsonl'}: line 3, the last, is cut off (a killed run?): left out",
                                    f"{run / '2.jsonl'}: is empty (a killed run?)")
    put(run, {"1.jsonl": whole.rstrip("\n")})  # whole but for its end
    assert rows_of(traces.load(run)) == [(1, 1, 2)]


GOOD = lines(verl("a", 1, 1))
BAD = {
    "malformed in the middle": (GOOD + '{"input": \n' + GOOD, "line 2: is not valid JSON, expected one object a line"),
    "malformed with its end": (GOOD + '{"input"\n', "line 2: is not valid JSON, expected one object a line"),
    "a list": (GOOD + "[1]\n", "line 2: is a list of 1, expected an object {...}"),
    "no score": ('{"input": "a", "output": "b", "step": 1}\n',
                 "line 1: no score, expected a line of verl; found input, output, step"),
    "no input": (GOOD + '{"score": 1, "step": 1}\n', "line 2: no input, expected a line of verl; found score, step"),
    "infinite": (lines(verl("a", float("inf"), 1)), "line 1: score is Infinity, expected a finite number (null or NaN: "
                 "not judged)"),
    "a huge integer": (GOOD.replace('"score": 1', '"score": 1' + "0" * 400),
                       "line 1: score is 1" + "0" * 56 + "..., expected a finite number (null or NaN: not judged)"),
    "digits by the thousand": (GOOD.replace('"score": 1', '"score": ' + "9" * 5000),
                               "line 1: is not valid JSON, expected one object a line"),
    "text": (lines(verl("a", "yes", 1)), 'line 1: score is "yes", expected a finite number (null or NaN: not judged)'),
    "another step": (lines(verl("a", 1, 2)), "line 1: step is 2, expected 1 as in the file's name"),
    "no step": (lines(verl("a", 1, None)), "line 1: step is null, expected an integer of at least 0 and at most 2^62"),
    "bad entropy": (lines(verl("a", 1, 1, entropy=-1)),
                    "line 1: entropy is -1, expected a non-negative number of nats"),
    "binary": (b"\x89PNG\n\x00\n", "line 1: is not valid JSON, expected one object a line"),
    "another engine's": ('{"prompt_id": 1, "reward": 1}\n',
                         "line 1: no step, expected a line of verl; found prompt_id, reward"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_lines_are_named(tmp_path, name):
    text, message = BAD[name]
    run = put(tmp_path, {"1.jsonl": text})
    assert refused(run, "verl") == f"{run / '1.jsonl'}: {message}"


def test_damaged_files_are_read_or_refused_on_one_line(tmp_path):
    rng = np.random.default_rng(5)
    good = lines(*(verl(i // 2, i % 2, 1, uid=f"u{i // 2}_{i % 2}_0", entropy=0.5) for i in range(6))).encode()
    refusals = 0
    for _ in range(300):
        data = bytearray(good)
        for _ in range(rng.integers(1, 4)):
            a, b = sorted(rng.integers(0, len(data) + 1, 2))
            data[a:b] = [b"", rng.bytes(2), data[a:b][::-1], b'"', b"\n", b"NaN", b"9" * 5000][rng.integers(7)]
        run = put(tmp_path, {"1.jsonl": bytes(data)})
        try:
            recording = traces.load(run, "verl")
        except InputError as error:
            refusals += 1
            assert str(error).startswith(str(run)) and len(str(error).splitlines()) == 1
        else:
            assert (recording.attempts >= 1).all() and (recording.successes <= recording.attempts).all()
    assert refusals > 100


# --- which format -------------------------------------------------------------------------------------


def test_folders_that_hold_nothing_or_two_formats(tmp_path):
    assert refused(tmp_path) == (
        f"{tmp_path}: holds no rollouts, expected verl: N.jsonl per step; trl: completions_N.parquet, in it or in "
        "completions/; prime-rl: rollouts/step_N/train/all/traces.jsonl; open-instruct: RUN_rollouts_N.jsonl")
    put(tmp_path, {"1.jsonl": [verl("a", 1, 1)], "r_rollouts_000000.jsonl": [open_instruct(0, 7, 1.0, 1)]})
    assert refused(tmp_path) == f"{tmp_path}: holds files of verl and open-instruct: choose with --format"
    assert len(traces.load(tmp_path, "verl")) == 1
    assert refused(tmp_path, "prime-rl") == (
        f"{tmp_path}: holds no rollouts, expected prime-rl: rollouts/step_N/train/all/traces.jsonl")
    assert refused(tmp_path, "rollouts") == f"{tmp_path}: is a directory, expected a JSONL or CSV file"
    assert refused(tmp_path, "verI") == "--format verI: unknown; did you mean 'verl'?"
    assert refused(tmp_path / "none").startswith(f"{tmp_path / 'none'}: no such file")
    assert refused(tmp_path, "verl", threshold=float("nan")) == "--threshold is nan, expected a finite number"


def test_a_file_is_recognised_by_its_first_line(tmp_path):
    path = write(tmp_path, lines(verl("a", 1, 3), verl("a", 0, 4)), "some.jsonl")
    assert rows_of(traces.load(path)) == [(3, 1, 1), (4, 0, 1)]
    plain = write(tmp_path, lines({"prompt_id": 1, "rewards": [0, 1]}), "plain.jsonl")
    assert rows_of(traces.load(plain)) == rows_of(traces.load(plain, "rollouts")) == [(None, 1, 2)]
    assert refused(plain, threshold=0.5).startswith("--threshold is for rollouts of an engine;")
    assert refused(plain, "verl").startswith(f"{plain}: line 1: no step, expected a line of verl")
    assert refused(write(tmp_path, "", "e.jsonl")).endswith("e.jsonl: is empty, expected recorded rollouts, one JSON "
                                                            "object or CSV row a line")
    assert len(traces.load("smollm2_135m_arithmetic")) == 180


# --- prime-rl ---------------------------------------------------------------------------------------


def episode(group, score, *, idx=0, ok=True, weight=1.0, **more):
    """0.8.1: one episode a line, its traces inside; None fields are not written."""
    trace = {"version": 1, "id": "t", "task": {"type": "Math", "data": {"idx": idx, "prompt": "?"}},
             "agent": {"config": {}, "name": "agent", "trainable": True}, "nodes": [],
             "rewards": {} if score is None else {"correct": {"score": score, "weight": weight}},
             "metrics": {"length": 7.0}, "is_completed": True, "ok": ok, "errors": []}
    return {"id": "e", "env": {"id": "math", "name": "math"}, "task": trace["task"], "group": {"id": group}, "ok": ok,
            "run": {"type": "train", "id": "r", "work": {"type": "train", "step": 1}}, "errors": [],
            "traces": [trace], **more}


def test_prime_rl_groups_may_lie_in_two_steps(tmp_path):
    # Group g came in at steps 1 and 2: 1 of 3, at step 2; h failed once (its reward is no verdict): 1 of 1 at step 10.
    run = put(tmp_path, {
        "rollouts/step_1/train/all/traces.jsonl": [episode("g", 1.0), episode("g", 0.0)],
        "rollouts/step_2/train/all/traces.jsonl": [episode("g", 0.0)],
        "rollouts/step_10/train/all/traces.jsonl": [episode("h", 1.0, idx=1), episode("h", 0.0, idx=1, ok=False)],
        "rollouts/step_10/train/effective/traces.jsonl": [episode("h", 1.0, idx=1)],
        "rollouts/step_10/eval/all/traces.jsonl": [episode("x", 0.5)],
    })
    for path in (run, run / "rollouts"):
        recording = traces.load(path)
        assert rows_of(recording) == [(2, 1, 3), (10, 1, 1)]
        assert recording.notes == ("read as prime-rl: 3 files, reward from the sum of rewards",
                                   "groups that came in over several steps, counted at their last: 1",
                                   "rollouts that were not judged, left out: 1")
    assert rows_of(traces.load(run / "rollouts" / "step_10")) == [(10, 1, 1)]
    one = run / "rollouts/step_10/train/effective/traces.jsonl"
    recording = traces.load(one)
    assert rows_of(recording) == [(10, 1, 1)] and recording.notes[-1].startswith("effective rollouts only")


def test_prime_rl_earlier_forms(tmp_path):
    # 0.8.0: a trace a line, group in info; 0.7: weighted numbers and the group on top; 0.6: flat.
    trace = episode("g", 1.0)["traces"][0]
    forms = {
        "0.8.0": [{**trace, "info": {"group_id": "g", "env_name": "math"}},
                  {**trace, "rewards": {"correct": None}, "info": {"group_id": "g", "env_name": "math"}},
                  {**trace, "agent": {"trainable": False}, "info": {"group_id": "g", "env_name": "math"}}],
        "0.7": [{"id": "t", "task": {"type": "M", "data": {"idx": 0}}, "rewards": {"correct": 1.0}, "metrics": {},
                 "errors": [], "kind": "train", "env_name": "math", "group_id": "g", "eval_step": None},
                {"id": "t", "task": {"type": "M", "data": {"idx": 0}}, "rewards": {"correct": 1.0}, "metrics": {},
                 "errors": [{"type": "E", "message": ""}], "kind": "train", "env_name": "math", "group_id": "g"}],
    }
    for name, rows in forms.items():
        run = put(tmp_path / name, {"rollouts/step_3/train/all/traces.jsonl": rows})
        recording = traces.load(run)
        assert rows_of(recording) == [(3, 1, 1)]
        assert "rollouts that were not judged, left out: 1" in recording.notes
    flat = {"example_id": 4, "prompt": [], "completion": [], "reward": 1.0, "metrics": {"judge": 0.0}, "error": None,
            "env_name": "math", "group_id": "g", "is_filtered": False}
    run = put(tmp_path / "0.6", {"rollouts/step_3/train_rollouts.jsonl": [
        flat, {**flat, "reward": 0.0}, {**flat, "reward": 0.0, "error": {"error": "E"}}]})
    assert rows_of(traces.load(run)) == [(3, 1, 2)]
    assert rows_of(traces.load(run, reward="judge")) == [(3, 0, 2)]


def test_prime_rl_rewards(tmp_path):
    # .5 * 1 + .5 * 1 = 1; a format reward alone is .5
    both = episode("g", 1.0, weight=0.5)
    both["traces"][0]["rewards"]["format"] = {"score": 1.0, "weight": 0.5}
    half = episode("g", 0.0, weight=0.5)
    half["traces"][0]["rewards"]["format"] = {"score": 1.0, "weight": 0.5}
    path = "rollouts/step_1/train/all/traces.jsonl"
    run = put(tmp_path, {path: [both, half]})
    assert refused(run).startswith(f"{run / path}: line 2: the sum of rewards is 0.5, expected 0 or 1; --threshold T")
    assert rows_of(traces.load(run, threshold=1)) == [(1, 1, 2)]
    assert rows_of(traces.load(run, reward="correct")) == [(1, 1, 2)]
    assert rows_of(traces.load(run, reward="format")) == [(1, 2, 2)]
    assert refused(run, reward="corect") == f"{run / path}: line 1: no reward corect; found correct, format"
    put(tmp_path, {path: [{**both, "traces": both["traces"] * 2}]})
    assert refused(run).endswith("line 1: has 2 trained traces, expected one (agents that learn together?)")


def test_prime_rl_hostile_lines(tmp_path, monkeypatch):
    path = "rollouts/step_1/train/all/traces.jsonl"
    sound = episode("g", 1.0)
    for change, message in [
        ({"traces": [3]}, "holds no judged rollouts (rollouts that were not judged: 1)"),
        ({"traces": [{"rewards": 3, "ok": True}]}, "line 1: rewards is 3, expected an object of named rewards"),
        ({"traces": [{"rewards": {"a": {"score": "1"}}, "ok": True}]},
         'line 1: rewards.a is "1", expected a finite number'),
        ({"traces": [{"rewards": {"a": {"score": 10**310}}, "ok": True}]}, "expected a finite number"),
        ({"traces": [{"ok": True}]}, "line 1: no rewards, expected a line of prime-rl; found ok"),
    ]:
        assert message in refused(put(tmp_path, {path: [{**sound, **change}]}))
    for depth in (10, *range(sys.getrecursionlimit() - 150, sys.getrecursionlimit() + 10), 10**5):
        nested = '{"task": {"data": ' + "[" * depth + "]" * depth + '}, "group": {"id": "g"}, "traces": []}\n'
        put(tmp_path, {path: nested})
        assert refused(tmp_path).endswith(("holds no judged rollouts (rollouts that were not judged: 1)",
                                           "line 1: is nested too deeply",
                                           "line 1: is not valid JSON, expected one object a line"))
    put(tmp_path, {path: [sound]})
    monkeypatch.chdir((tmp_path / path).parent)  # the step is that of the folder, however it is named
    assert rows_of(traces.load("traces.jsonl")) == [(1, 1, 1)]
    monkeypatch.chdir(tmp_path / "rollouts" / "step_1")
    assert rows_of(traces.load(".")) == [(1, 1, 1)]


# --- TRL --------------------------------------------------------------------------------------------


@pytest.fixture
def parquet():
    return pytest.importorskip("pyarrow.parquet", reason="TRL's completions are Parquet: pip install pyarrow")


def completions(step, groups, chat=False, **more):
    """Columns of one file: {prompt: rewards}."""
    pairs = [(prompt, reward) for prompt, rewards in groups.items() for reward in rewards]

    def say(role, text):
        return [{"role": role, "content": text}] if chat else text

    return {"step": [step] * len(pairs), "prompt": [say("user", prompt) for prompt, _ in pairs],
            "completion": [say("assistant", f"{step} {i}") for i in range(len(pairs))],
            "is_right": [reward for _, reward in pairs], **more, "advantage": [0.0] * len(pairs)}


def table(parquet, path, columns):
    import pyarrow

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.parametrize("chat", [False, True])
def test_trl_completions(tmp_path, parquet, chat):
    # Step 9: a 1 of 3 (one None), b 0 of 4; logged again at step 10, whose rows say 10; at step 11 an evaluation
    # (e 1 of 2) has pushed out a and half of b; step 100: a 4 of 4.
    first = completions(9, {"a": [1.0, None, 0.0, 0.0], "b": [0.0] * 4}, chat)
    evaluated = completions(11, {"e": [1.0, 0.0]}, chat)
    folder = tmp_path / "completions"
    table(parquet, folder / "completions_00009.parquet", first)
    table(parquet, folder / "completions_00010.parquet", {**first, "step": [10] * 8})
    table(parquet, folder / "completions_00011.parquet", {
        name: [11] * 4 if name == "step" else first[name][-2:] + evaluated[name] for name in first})
    table(parquet, folder / "completions_00100.parquet", completions(100, {"a": [1.0] * 4}, chat))
    for path in (tmp_path, folder):
        recording = traces.load(path)
        assert rows_of(recording) == [(9, 1, 3), (9, 0, 4), (11, 1, 2), (100, 4, 4)]
        assert recording.prompt_id[0] == recording.prompt_id[3] and len(set(recording.prompt_id)) == 3
    assert "groups that were in the file before as well, left out: 3" in recording.notes
    assert "rollouts that were not judged, left out: 1" in recording.notes  # of two that are written
    assert "TRL writes evaluations into the same files: where one ran, its rollouts are among these" in recording.notes
    assert rows_of(traces.load(folder / "completions_00010.parquet")) == [(10, 1, 3), (10, 0, 4)]


@pytest.mark.parametrize("again", [[0.0, 1.0], [1.0, 0.0]])
def test_trl_the_same_prompt_with_other_completions_is_another_group(tmp_path, parquet, again):
    table(parquet, tmp_path / "completions_00001.parquet", completions(1, {"a": [1.0, 0.0]}))
    table(parquet, tmp_path / "completions_00002.parquet", completions(2, {"a": again}))
    assert rows_of(traces.load(tmp_path)) == [(1, 1, 2), (2, 1, 2)]


def test_trl_the_column_of_the_reward(tmp_path, parquet):
    columns = completions(1, {"a": [0.5, 1.0]}, length=[3, 4], entropy=[1.0, 2.0], note=["x", "y"])
    path = table(parquet, tmp_path / "completions_00001.parquet", columns)
    assert refused(path) == (f"{path}: has 2 columns that may be the reward (is_right, length), expected one: "
                             "--reward NAME")
    assert refused(path, reward="right") == (f"{path}: no column right; found step, prompt, completion, is_right, "
                                             "length, entropy, note, advantage")
    assert refused(path, reward="is_right").startswith(f"{path}: row 1: is_right is 0.5, expected 0 or 1; --threshold")
    recording = traces.load(path, reward="is_right", threshold=0.75)
    assert rows_of(recording) == [(1, 1, 2)] and recording.entropy.tolist() == [1.5]
    none = table(parquet, tmp_path / "distilled.parquet", {"step": [1], "prompt": ["a"], "completion": ["b"]})
    assert refused(none) == f"{none}: has no column of rewards, expected one: --reward NAME"
    other = table(parquet, tmp_path / "other.parquet", {"x": [1]})
    assert refused(other) == f"{other}: no column step, expected completions of TRL; found x"


def test_trl_damaged_files(tmp_path, parquet):
    path = table(parquet, tmp_path / "completions_00001.parquet", completions(1, {"a": [0.0, 1.0]}))
    whole = path.read_bytes()
    last = write(tmp_path, whole[:-20], "completions_00002.parquet")
    recording = traces.load(tmp_path)
    assert rows_of(recording) == [(1, 1, 2)]
    assert recording.notes[-1] == f"{last}: the last file is cut off (a killed run?): left out"
    write(tmp_path, whole[:-20], "completions_00001.parquet")
    write(tmp_path, whole, "completions_00002.parquet")
    assert refused(tmp_path) == f"{path}: is not a whole Parquet file"
    message = refused(write(tmp_path, whole[:-60] + b"\xff" * 40 + whole[-20:], "completions_00001.parquet"))
    assert message == f"{path}: is not a whole Parquet file"
    bad = bytearray(whole)
    bad[4:40] = b"\xff" * 36  # pages
    message = refused(write(tmp_path, bytes(bad), "bad.parquet"))
    assert message == f"{tmp_path / 'bad.parquet'}: row 1: cannot be read (a damaged file?)"


def test_trl_without_pyarrow_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = write(tmp_path, b"PAR1....PAR1", "completions_00001.parquet")
    for given in (path, tmp_path):
        assert refused(given) == f"{path}: is a Parquet file and needs pyarrow: pip install pyarrow"


# --- open-instruct ----------------------------------------------------------------------------------


def open_instruct(sample, token, reward, step, **more):
    return {"step": step, "sample_idx": sample, "prompt_idx": sample // 2, "prompt_tokens": [1, token],
            "response_tokens": [5, 6], "reward": reward, "advantage": 0.0, "finish_reason": "stop",
            "dataset": "math", "ground_truth": [9], "request_info": None, "logprobs": [-0.1, -0.2], **more}


def test_open_instruct_rewards_of_ten_shards_and_runs(tmp_path):
    # Prompt 7: 1 of 2 at step 1, 2 of 2 at step 2; prompt 8 (code): 0 of 1.
    run = put(tmp_path, {
        "a_metadata.jsonl": [{"run_name": "a"}],
        "a_rollouts_000000.jsonl": [open_instruct(0, 7, 10.0, 1), open_instruct(1, 7, 0.0, 1),
                                    open_instruct(2, 8, 0.0, 1, dataset=["code"])],
        "a_rollouts_000001.jsonl": [open_instruct(0, 7, 10.0, 2), open_instruct(1, 7, 10.0, 2)]})
    assert refused(run).endswith("a_rollouts_000000.jsonl: line 1: reward is 10.0, expected 0 or 1; "
                                 "--threshold T makes a reward of at least T a success")
    recording = traces.load(run, threshold=10)
    assert rows_of(recording) == [(1, 1, 2), (1, 0, 1), (2, 2, 2)]
    assert recording.task == ("math", "code", "math")
    put(tmp_path, {"b_rollouts_000000.jsonl": [open_instruct(0, 7, 0.0, 5)]})
    assert refused(run) == f"{run}: holds rollouts of 2 runs (a, b): choose one, {run}/RUN"
    assert rows_of(traces.load(run / "b")) == [(5, 0, 1)]
    assert rows_of(traces.load(run / "a", threshold=10)) == [(1, 1, 2), (1, 0, 1), (2, 2, 2)]


def test_open_instruct_a_step_that_is_recorded_twice_is_refused(tmp_path):
    rows = [open_instruct(i, 7, float(i), step) for step in (1, 2, 2) for i in (0, 1)]
    run = put(tmp_path, {"a_rollouts_000000.jsonl": rows})
    assert refused(run).endswith("line 5: step 2 is recorded a second time (a resumed run?): keep one of the two")


def test_mixed_groups_alone_are_warned_about(tmp_path, capsys):
    # Groups of 8: none uniform of n has chance (7/9)^n under even solve rates, below 1% from n = 19 on.
    def run(groups, last=1.0):
        rows = [open_instruct(8 * g + i, g, float(i < 3) if g else last if i else 1.0, 1)
                for g in range(groups) for i in range(8)]
        return put(tmp_path / f"{groups}{last}", {"a_rollouts_000000.jsonl": rows})

    warning = "is uniform: were such groups filtered out?"
    assert not any(warning in note for note in replay(traces.load(run(18, 0.0)), ["dr_grpo"]).notes)
    assert any(warning in note for note in replay(traces.load(run(19, 0.0)), ["dr_grpo"]).notes)
    assert not any(warning in note for note in replay(traces.load(run(19, 1.0)), ["dr_grpo"]).notes)
    assert main(["replay", str(run(19, 0.0)), "--method", "fade"]) == 0
    assert f"note: none of 19 groups {warning} phat is then biased" in capsys.readouterr().out


# --- the command ------------------------------------------------------------------------------------


def test_the_command_prints_as_for_a_recording(tmp_path, capsys):
    run = put(tmp_path / "run", {"1.jsonl": [verl("a", -1.0, 1), verl("a", 1.0, 1)],
                                 "2.jsonl": [verl("b", 1.0, 2), verl("b", 1.0, 2)]})
    assert main(["replay", str(run), "--threshold", "0", "--method", "dr_grpo", "--json", str(tmp_path / "j")]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{run}\n2 prompts, 2 groups, 4 rollouts\nmean solve rate 0.750\n")
    assert "note: read as verl: 2 files, reward from score\nnote: score is from -1 to 1: at least 0 is a success" in out
    assert json.loads((tmp_path / "j").read_text())["rules"][0]["m_S"] == 0.125
    assert main(["replay", str(run)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("fade-sim: error: ") and "line 1: score is -1.0" in error and error.count("\n") == 1
    assert main(["replay", str(run), "--threshold", "x"]) == 2
