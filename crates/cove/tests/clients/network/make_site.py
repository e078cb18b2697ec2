"""Writes the files of the servers that network clients are tested with: `make_site.py FOLDER`.

Each server has a folder under its name: a Python index, an npm registry, a registry of cargo, a Debian archive, a git
repository, and an API. All have a thing called `covehello`. The server puts its port in place of `@PORT@`.
"""

import base64
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile

root = sys.argv[1]


def write(path, content):
    path = os.path.join(root, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def archive(files):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as out:
        for path, text in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(text)
            out.addfile(entry, io.BytesIO(text.encode()))
    return data.getvalue()


def api():
    write("api/item", '{"item": "hello"}\n')
    # Where gh looks for the API of a host that is not its own.
    write("api/api/v3/item", '{"item": "hello"}\n')


def pypi():
    info, name = "covehello-1.0.dist-info", "covehello-1.0-py3-none-any.whl"
    files = {
        "covehello.py": "greeting = 'hello'\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: covehello\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{info}/RECORD,,\n"
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text)}\n"
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as out:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            out.writestr(path, text)
    digest = hashlib.sha256(data.getvalue()).hexdigest()
    write(f"pypi/files/{name}", data.getvalue())
    link = f'<a href="/files/{name}#sha256={digest}">{name}</a>'
    write("pypi/simple/covehello/index.html", f"<!DOCTYPE html><html><body>{link}</body></html>")


def npm():
    manifest = {"name": "covehello", "version": "1.0.0", "main": "main.js"}
    data = archive({"package/package.json": json.dumps(manifest), "package/main.js": "exports.greeting = 'hello';\n"})
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
    tarball = "https://npm.test:@PORT@/covehello/-/covehello-1.0.0.tgz"
    versions = {"1.0.0": {**manifest, "dist": {"tarball": tarball, "integrity": integrity}}}
    about = {"name": "covehello", "dist-tags": {"latest": "1.0.0"}, "versions": versions}
    write("npm/covehello/index.html", json.dumps(about))
    write("npm/covehello/-/covehello-1.0.0.tgz", data)


def cargo():
    manifest = '[package]\nname = "covehello"\nversion = "1.0.0"\nedition = "2021"\n'
    files = {"covehello-1.0.0/Cargo.toml": manifest, "covehello-1.0.0/src/lib.rs": "//! hello\n"}
    data = archive(files)
    entry = {"name": "covehello", "vers": "1.0.0", "deps": [], "features": {}, "yanked": False}
    write("cargo/index/config.json", json.dumps({"dl": "https://cargo.test:@PORT@/crates"}))
    write("cargo/index/co/ve/covehello", json.dumps({**entry, "cksum": hashlib.sha256(data).hexdigest()}) + "\n")
    write("cargo/crates/covehello/1.0.0/download", data)


def debian():
    control = "Package: covehello\nVersion: 1.0\nArchitecture: all\nMaintainer: tests\nDescription: hello\n"
    digest = hashlib.sha256(b"hello\n").hexdigest()
    packages = f"{control}Filename: ./covehello.deb\nSize: 6\nSHA256: {digest}\n".encode()
    write("debian/covehello.deb", "hello\n")
    write("debian/Packages", packages)
    line = f" {hashlib.sha256(packages).hexdigest()} {len(packages)} Packages\n"
    write("debian/Release", f"Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n{line}")


def git():
    work, bare = os.path.join(root, "work"), os.path.join(root, "git", "covehello.git")
    settings = {**os.environ, "HOME": root, "GIT_CONFIG_NOSYSTEM": "1"}

    def run(*words):
        subprocess.run(["git", *words], check=True, env=settings, stdout=subprocess.DEVNULL)

    run("init", "--quiet", "--initial-branch=main", work)
    write("work/greeting", "hello\n")
    commit = ["-C", work, "-c", "user.name=tests", "-c", "user.email=tests@example.invalid", "commit", "--quiet", "-m", "hello"]
    run("-C", work, "add", "greeting")
    run(*commit)
    run("-C", work, "checkout", "--quiet", "-b", "other")
    write("work/greeting", "hello again\n")
    run(*commit, "--all")
    run("-C", work, "checkout", "--quiet", "main")
    run("clone", "--quiet", "--bare", work, bare)


for make in (api, pypi, npm, cargo, debian, git):
    make()
