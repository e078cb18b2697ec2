"""Makes `potion-base-2m.bin` from the model's folder: `python3 make.py FOLDER`. README.md describes the layout."""

import hashlib
import json
import pathlib
import re
import struct
import sys

DIMENSIONS = 64

folder = pathlib.Path(sys.argv[1])
vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
model = (folder / "model.safetensors").read_bytes()
matrix = model[8 + struct.unpack_from("<Q", model)[0] :]

# Search splits text at digits and signs, so only pieces that begin with a letter can occur.
kept = {piece: row for piece, row in vocabulary.items() if re.fullmatch("(##)?[a-z][a-z0-9]*", piece)}
words = sorted((piece.replace("##", "#"), row) for piece, row in kept.items())
scales, values = b"", b""
for _, row in words:
    vector = struct.unpack_from(f"<{DIMENSIONS}f", matrix, row * DIMENSIONS * 4)
    scale = max(map(abs, vector)) / 7
    levels = [round(value / scale) + 8 for value in vector]
    scales += struct.pack("<H", round(scale * 8192))
    values += bytes(low | high << 4 for low, high in zip(levels[::2], levels[1::2]))
text = "".join(word + "\n" for word, _ in words).encode()
body = struct.pack("<II", len(words), len(text)) + text + scales + values
pathlib.Path("potion-base-2m.bin").write_bytes(hashlib.sha256(body).digest() + body)
