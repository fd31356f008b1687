"""The text in a pickle that holds one text and nothing else. Nothing is ever unpickled.

A pickle is a program. Its opcodes are listed without being run, and any beyond those that
write a text down refuses the whole.
"""

import base64
import binascii
import io
import pickletools
import zlib

LARGEST = 1 << 30  # bytes unpacked: the largest tests of LiveCodeBench are a few hundred megabytes
_HARMLESS = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP"}  # they carry no value
_TEXT = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}


def text_of(data: bytes) -> str:
    """The text of a pickle. Raises ValueError on anything but one text."""
    stream, found = io.BytesIO(data), []
    try:
        for opcode, argument, _ in pickletools.genops(stream):
            if opcode.name in _TEXT:
                found.append(argument)
            elif opcode.name not in _HARMLESS:
                raise ValueError(f"a pickle with the opcode {opcode.name}, expected a text alone")
    except (ValueError, OverflowError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    if len(found) != 1 or stream.read(1):
        raise ValueError("a pickle that holds more than a text, or none")
    return found[0]


def unpack(packed: str) -> str:
    """The text in base64 of zlib of a pickle. Raises ValueError."""
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(base64.b64decode(packed, validate=True), LARGEST)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise ValueError(f"neither JSON nor packed JSON ({error})") from None
    if not stream.eof:
        raise ValueError("packed JSON that ends early" if len(data) < LARGEST else "packed JSON that is too large")
    return text_of(data)
