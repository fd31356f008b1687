"""A pickle is a program: none is run, and only one that writes down a text is read."""

import base64
import os
import pickle
import zlib

import pytest
from files import livecodebench, write

from llm import cli
from llm.datasets import pickled


class Hostile:
    """Unpickled, it makes a folder."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark,)


def pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("text", ["", "[]", "é" * 300, "x" * 70_000, "a\n\\u0041\0b"])
def test_a_text_comes_back(protocol, text):
    assert pickled.unpack(pack(pickle.dumps(text, protocol))) == text


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_hostile_pickle_is_never_executed(tmp_path, capsys, protocol):
    mark = tmp_path / "mark"
    data = pickle.dumps(Hostile(mark), protocol)
    pickle.loads(data)  # it is hostile indeed
    mark.rmdir()
    for payload in (data, pickle.dumps(["[]", Hostile(mark)], protocol)):
        with pytest.raises(ValueError, match="pickle"):
            pickled.unpack(pack(payload))
        file = write(tmp_path, [livecodebench(), livecodebench("b", private_test_cases=pack(payload))])
        assert cli.main(["data", "livecodebench", file, "--out", str(tmp_path / "out.jsonl")]) == 2
        err = capsys.readouterr().err.strip()
        assert "line 2: private_test_cases: a pickle" in err and "\n" not in err
        assert not mark.exists() and not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("data", [
    b"", b"garbage", pickle.dumps(3), pickle.dumps(["a"]), pickle.dumps({"a": 1}), pickle.dumps(None),
    pickle.dumps(b"x"), pickle.dumps("a") + b"cos\nsystem\n(S'true'\ntR.", pickle.dumps("a")[:-1],
    pickle.dumps("a")[:-3], b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
    b"\x80\x04\x8c\x01a\x8c\x01b.", b"cos\nsystem\n.", b"\x80\x04\x8c\x02os\x8c\x06system\x93.", b"\x80\x04N.",
])
def test_anything_else_is_refused(data):
    with pytest.raises(ValueError):
        pickled.unpack(pack(data))


def test_what_unpacks_to_too_much_is_refused(monkeypatch):
    monkeypatch.setattr(pickled, "LARGEST", 1000)
    with pytest.raises(ValueError, match="too large"):
        pickled.unpack(pack(pickle.dumps("x" * 5000)))
    with pytest.raises(ValueError, match="ends early"):
        pickled.unpack(base64.b64encode(zlib.compress(pickle.dumps("abc"))[:-6]).decode())
    with pytest.raises(ValueError, match="neither JSON nor packed"):
        pickled.unpack("é")
