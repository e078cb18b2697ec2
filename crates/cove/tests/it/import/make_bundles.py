"""Makes bundles in the folder of the first argument: one that is good, which starts the program of the second argument, and
others that no program should unpack."""

import json
import os
import random
import stat
import sys
import zipfile

folder, program = sys.argv[1:]
manifest = {
    "manifest_version": "0.3",
    "name": "Recorder",
    "version": "1.0.0",
    "description": "Records",
    "server": {
        "type": "binary",
        "entry_point": "server/start",
        "mcp_config": {
            "command": "nowhere",
            "args": ["x"],
            "env": {"LEVEL": "${user_config.level}", "KEY": "${user_config.key}", "OPTIONAL": "${user_config.optional}"},
            "platform_overrides": {"linux": {"command": "${__dirname}/server/start", "args": ["${user_config.folders}"]}},
        },
    },
    "user_config": {
        "level": {"type": "string", "default": "${HOME}/info"},
        "key": {"type": "string", "sensitive": True, "required": True},
        "folders": {"type": "directory", "multiple": True, "default": ["${HOME}/a", "${DOCUMENTS}"]},
        "optional": {"type": "string"},
    },
}


def bundle(name, files=(), manifest=manifest, method=zipfile.ZIP_DEFLATED):
    path = os.path.join(folder, name)
    with zipfile.ZipFile(path, "w", method) as archive:
        if manifest is not None:
            archive.writestr("manifest.json", json.dumps(manifest))
        for file, content in files:
            archive.writestr(file, content)
    return path


start = f'#!/bin/sh\nexec "{program}"\n'
good = bundle("good.mcpb", [("server/start", start), ("server/empty/", ""), ("server/data.txt", "x" * 100_000)])
bundle("stored.dxt", [("server/start", start)], method=zipfile.ZIP_STORED)
bundle("up.mcpb", [("../evil", "x")])
bundle("absolute.mcpb", [("/tmp/evil", "x")])
bundle("backslash.mcpb", [("a\\..\\evil", "x")])
link = zipfile.ZipInfo("link")
link.external_attr = (stat.S_IFLNK | 0o777) << 16
bundle("link.mcpb", [(link, "/etc/passwd")])
bundle("many.mcpb", [(f"f{number}", "") for number in range(10_001)])
bundle("bomb.mcpb", [("zeros", b"\0" * (101 << 20))])
bundle("nothing.mcpb", manifest=None)
bundle("elsewhere.mcpb", manifest={**manifest, "compatibility": {"platforms": ["darwin"]}})
bundle("lzma.mcpb", [("a", "x")], method=zipfile.ZIP_LZMA)
with open(good, "rb") as file:
    content = file.read()
with open(os.path.join(folder, "cut.mcpb"), "wb") as file:
    file.write(content[:-40])
# The list of files promises less than the file holds.
lying = bytearray(content)
at = lying.rindex(b"server/data.txt") - 46
lying[at + 24 : at + 28] = (10).to_bytes(4, "little")
with open(os.path.join(folder, "lying.mcpb"), "wb") as file:
    file.write(lying)
random.seed(1)
for number in range(40):
    mutated = bytearray(content)
    for _ in range(3):
        mutated[random.randrange(len(mutated))] = random.randrange(256)
    with open(os.path.join(folder, f"mutated-{number}.mcpb"), "wb") as file:
        file.write(mutated)
