"""Rows of a file on disk, one at a time: JSONL, a JSON list, Parquet, Arrow; the text ones also gzipped. Lines out."""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from fade_sim.errors import InputError
from llm.judge.problems import parse_json

SUFFIXES = (".jsonl", ".json", ".parquet", ".arrow")


def read(path: Path, columns: tuple[str, ...] = ()) -> Iterator[tuple[str, dict]]:
    """(where, row) of every row; where: "FILE: line 3", for messages. `columns`: what Parquet and Arrow read.

    Raises InputError on a file that cannot be read, and on a row that is not an object, naming it.
    """
    suffixes = [s.lower() for s in path.suffixes]
    zipped = suffixes[-1:] == [".gz"]
    kind = ([s for s in suffixes if s != ".gz"] or [""])[-1]
    if kind not in SUFFIXES:
        raise InputError(f"{path}: the name ends in {kind or 'nothing'!r}, expected one of {', '.join(SUFFIXES)}, "
                         "or .jsonl.gz, .json.gz")
    if kind in (".parquet", ".arrow"):
        yield from _columns(path, kind, columns)
        return
    try:
        with (gzip.open if zipped else open)(path, "rt", encoding="utf-8-sig", newline="\n") as stream:
            if kind == ".jsonl":
                for i, line in enumerate(stream, 1):
                    if line.strip():
                        where = f"{path}: line {i}"
                        yield where, _object(line, where)
            else:
                yield from _list(stream.read(), path)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None


def write(out: Path, lines: Iterable[str]) -> None:
    """Lines of a new file, which gets its name when it is whole. Raises InputError."""
    partial = out.with_name(f".{out.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as stream:
            stream.writelines(f"{line}\n" for line in lines)
        partial.replace(out)
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror or error})") from None
    finally:
        partial.unlink(missing_ok=True)


def _object(text: str, where: str) -> dict:
    try:
        row = parse_json(text)
    except ValueError as error:
        raise InputError(f"{where}: is not JSON ({error})") from None
    if not isinstance(row, dict):
        raise InputError(f"{where}: is not an object")
    return row


def _list(text: str, path: Path) -> Iterator[tuple[str, dict]]:
    try:
        rows = parse_json(text)
    except ValueError as error:
        raise InputError(f"{path}: is not JSON ({error})") from None
    if not isinstance(rows, list):
        raise InputError(f"{path}: is not a list of objects; one object a line goes in a .jsonl file")
    for i, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise InputError(f"{path}: item {i}: is not an object")
        yield f"{path}: item {i}", row


def _columns(path: Path, kind: str, columns: tuple[str, ...]) -> Iterator[tuple[str, dict]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{path}: {kind} files need the package pyarrow: pip install pyarrow") from None

    def batches():
        if kind == ".parquet":
            table = parquet.ParquetFile(path)
            wanted = [name for name in table.schema_arrow.names if name in columns]
            yield from table.iter_batches(batch_size=32, columns=wanted or None)
            return
        with pyarrow.memory_map(str(path)) as source:
            try:
                yield from pyarrow.ipc.open_stream(source)
            except pyarrow.ArrowInvalid:  # the other of Arrow's two layouts
                whole = pyarrow.ipc.open_file(source)
                yield from (whole.get_batch(i) for i in range(whole.num_record_batches))

    i = 0
    try:
        for batch in batches():
            for row in batch.to_pylist():
                i += 1
                yield f"{path}: row {i}", row
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
