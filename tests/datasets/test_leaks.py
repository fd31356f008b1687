"""PAK-06: evaluation problems inside the training set, whatever the case, the white space and the punctuation."""

import json
import re
from pathlib import Path

import pytest
from files import codecontests, livecodebench, write

from fade_sim.overlap import Copy, copies, words
from llm import cli
from llm.data import read_problems

LONG = ("Alice has n boxes in a row, and box i holds a_i coins. In one move she takes every coin of a box and of the "
        "two boxes beside it. What is the largest number of coins that she can take in k moves?")


def test_the_same_words_are_the_same_problem_but_other_numbers_and_signs_are_not():
    changed = re.sub(r"[,.?]", "", LONG).upper().replace(" ", "\n  ")
    assert changed != LONG and words(changed) == words(LONG)
    assert copies(["Other.", changed], [LONG]) == [Copy(0, 1, 1.0)]
    assert words("well-known $x$") == words("Well known x") and words("a\u22123") == words("a-3")
    for a, b in (("What is 2+2?", "What is 2-2?"), ("3.5 m", "35 m"), ("3.5 m", "3 5 m"), ("x < y", "x > y"),
                 ("-3", "3")):
        assert words(a) != words(b) and copies([a], [b]) == []


def test_a_stock_phrase_is_no_copy_and_a_share_of_phrases_is():
    """PAK-06: sharing six words is no leak. With n words there are n - 7 phrases of 8; other last 9 words spoil 9."""
    stock = "Find the remainder when N is divided by 1000."
    assert copies(["Find the remainder when N is divided by 7."], [stock]) == []
    n = len(words(LONG))
    edited = " ".join([*words(LONG)[: n - 9], "how many coins can he gain with two steps"])
    (found,) = copies([stock, edited], [LONG])
    assert found.train == 1 and found.share == pytest.approx((n - 7 - 9) / (n - 7))
    assert copies([edited], [LONG], share=found.share + 0.01) == []
    half = " ".join(words(LONG)[: (n - 7) // 3 + 7])  # a third of the phrases
    assert copies([half], [LONG]) == [] and copies([LONG], [half]) == [Copy(0, 0, 1.0)]


def test_the_closest_training_problem_is_named():
    near = LONG.replace("coins", "stones", 1)
    assert copies([near, LONG.lower(), near], [stock := "Nothing.", LONG]) == [Copy(1, 1, 1.0)] and stock


def problems(tmp_path, name, *rows):
    path = tmp_path / name
    path.write_text("".join(json.dumps({"prompt": p, "answer": a}) + "\n" for p, a in rows))
    return str(path)


def test_the_command_finds_a_planted_copy_behind_the_instruction_that_all_share(tmp_path, capsys):
    converted, out = [], tmp_path / "train.jsonl"
    for source, rows in (("codecontests", [codecontests(description=LONG), codecontests(description="Halve n.")]),
                         ("livecodebench", [livecodebench(question_content="Double n."),
                                            livecodebench("b", question_content=LONG.upper().replace(",", " ;"))])):
        folder = tmp_path / source
        folder.mkdir()
        converted.append(str(folder / "out.jsonl"))
        assert cli.main(["data", source, write(folder, rows), "--out", converted[-1]]) == 0
    capsys.readouterr()
    clean = tmp_path / "clean.jsonl"
    assert cli.main(["overlap", *converted, "--clean", str(clean)]) == 1
    said = capsys.readouterr().out
    assert "1 of 2 problems" in said and "1 word for word, 0 near copies" in said and "ALICE HAS N BOXES" in said
    (left,) = read_problems(clean)
    assert "Halve n." in left.prompt and left.answer == read_problems(Path(converted[0]))[1].answer
    assert cli.main(["overlap", str(clean), converted[1]]) == 0
    assert "0 of 2 problems" in capsys.readouterr().out and not out.exists()


def test_every_copy_is_cleaned_away(tmp_path, capsys):
    train = problems(tmp_path, "train.jsonl", (LONG, "1"), (LONG.upper(), "1"), ("What else?", "2"),
                     (LONG.replace("row", "line"), "1"))
    test = problems(tmp_path, "test.jsonl", (LONG + "!", "1"))
    assert cli.main(["overlap", train, test, "--clean", str(tmp_path / "c.jsonl")]) == 1
    assert [p.prompt for p in read_problems(tmp_path / "c.jsonl")] == ["What else?"]
    assert "1 of 4 training problems" in capsys.readouterr().out


def test_bad_input_is_one_line(tmp_path, capsys):
    file = problems(tmp_path, "a.jsonl", (LONG, "1"))
    (tmp_path / "bad.jsonl").write_text('{"question": "a"}')
    for argv, says in (([file], "required: test"),
                       ([file, str(tmp_path / "bad.jsonl")], "bad.jsonl: line 1: prompt is None"),
                       ([file, "/nonexistent.jsonl"], "cannot be read"),
                       ([file, file, "--share", "1.5"], "not a share above 0 and at most 1"),
                       ([file, file, "--ngram", "0"], "integer of at least 1"),
                       ([file, file, "--clean", file], "already exists"),
                       ([file, file, "--clean", "x.txt"], ".jsonl file"),
                       ([file, file, "--clean", str(tmp_path / "c.jsonl")], "no training problem is left")):
        assert cli.main(["overlap", *argv]) == 2
        err = capsys.readouterr().err.strip()
        assert says in err and "\n" not in err


def test_help_is_immediate():
    import subprocess
    import sys

    code = ("import sys\nfrom llm import cli\n"
            "try:\n    cli.main([sys.argv[1], '--help'])\nexcept SystemExit:\n    pass\n"
            "print([m for m in ('numpy', 'torch', 'rich', 'msgspec', 'pyarrow', 'llm.judge') if m in sys.modules])")
    for command, says in (("data", "livecodebench"), ("overlap", "near copy")):
        done = subprocess.run([sys.executable, "-c", code, command], capture_output=True, text=True, timeout=60)
        assert done.stdout.strip().splitlines()[-1] == "[]" and says in done.stdout
