"""Small files in the original format of each source, as its own repository reads them, and programs that solve them."""

import base64
import json
import pickle
import zlib

SUM = "Read two numbers and print their sum."
RIGHT = "print(sum(map(int, input().split())))"
WRONG = "print(max(map(int, input().split())))"


def codecontests(**changed) -> dict:
    """A row as in Parquet."""
    return {"name": "1_A. Sum", "description": SUM, "public_tests": {"input": ["1 2\n"], "output": ["3\n"]},
            "private_tests": {"input": ["40 2\n", "-4 8\n"], "output": ["42\n", "4\n"]},
            "generated_tests": {"input": ["1000 27\n"], "output": ["1027\n"]}, "source": 2, "difficulty": 7,
            "solutions": {"language": [3], "solution": [RIGHT]}, "is_description_translated": False,
            "untranslated_description": "", "time_limit": {"seconds": 2, "nanos": 500000000},
            "memory_limit_bytes": 256000000, "input_file": "", "output_file": "", "cf_tags": ["math"], **changed}


def converted(**changed) -> dict:
    """The same problem as the repository's own converter to JSON writes it."""
    row = codecontests(time_limit="seconds: 2\nnanos: 500000000\n", **changed)
    for key in ("public_tests", "private_tests", "generated_tests"):
        row[key] = [{"input": a, "output": b} for a, b in zip(row[key]["input"], row[key]["output"], strict=True)]
    return row


def taco(tests=None, **changed) -> dict:
    tests = tests or {"inputs": ["1 2\n", ["40", "2"]], "outputs": ["3\n", ["42"]]}
    tests = tests if isinstance(tests, str) else json.dumps(tests)
    return {"question": SUM.replace("Read", "Given on one or two lines are"), "solutions": "[]", "starter_code": "",
            "input_output": tests, "difficulty": "EASY", "raw_tags": "[]", "name": None,
            "source": "codeforces", "tags": "[]", "skill_types": "[]", "url": "", "date": "2014-06-20",
            "time_limit": "2.0 seconds", "picture_num": "0", "memory_limit": None,
            "Expected Auxiliary Space": None, "Expected Time Complexity": None, **changed}


def packed(tests: list, protocol: int = 4) -> str:
    """Private tests as LiveCodeBench packs them."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests), protocol))).decode()


def case(given: str, expected: str, kind: str = "stdin") -> dict:
    return {"input": given, "output": expected, "testtype": kind}


def livecodebench(name: str = "abc400_a", day: str = "2025-01-04", **changed) -> dict:
    return {"question_title": "Sum", "question_content": f"{SUM} ({name})", "platform": "atcoder", "question_id": name,
            "contest_id": "abc400", "contest_date": f"{day}T00:00:00", "starter_code": "", "difficulty": "easy",
            "public_test_cases": json.dumps([case("1 2\n", "3\n")]),
            "private_test_cases": packed([case("40 2\n", "42\n")]), "metadata": "{}", **changed}


def method(**changed) -> dict:
    """A LeetCode problem: a method, a line of JSON per argument."""
    return livecodebench("3500", **{
        "question_title": "two-largest", "question_content": "Return the sum of nums and k.", "platform": "leetcode",
        "starter_code": "class Solution:\n    def total(self, nums: List[int], k: int) -> int:\n        ",
        "metadata": json.dumps({"func_name": "total"}),
        "public_test_cases": json.dumps([case("[1, 2]\n3", "6", "functional")]),
        "private_test_cases": packed([case("[]\n-1", "-1", "functional")]), **changed})


METHOD_RIGHT = "class Solution:\n    def total(self, nums: List[int], k: int) -> int:\n        return sum(nums) + k"
METHOD_WRONG = METHOD_RIGHT.replace("+ k", "+ abs(k)")


def write(path, rows, kind: str = "jsonl"):
    """Rows in a file of a kind; its path as a text."""
    path = path / f"rows.{kind}"
    if kind in ("parquet", "arrow"):
        import pyarrow
        from pyarrow import parquet

        table = pyarrow.Table.from_pylist(rows)
        if kind == "parquet":
            parquet.write_table(table, path)
        else:
            with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
    elif kind == "json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n\n")
    return str(path)
