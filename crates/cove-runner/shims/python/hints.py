# The Python shim: what can be done about errors that the sandbox itself causes. Fetched when such an error is printed.
#
# boot.py runs it in the globals of the shim. It decides by the error's class and fields, never by its text.
# ruff: noqa: F821 (the other globals, and the builtins, come from boot.py and cell.py)

hints = True
# How many packages a hint names.
MAX_NAMED = 25
# Packages whose name differs from that of their module.
PACKAGE_NAMES = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
# Folders of people, which a sandbox may have for what is mounted there.
PEOPLES_FOLDERS = "home", "Users", "root"


def hint_for(errors):
    """Returns what to do about an error and its causes, the error first, or None."""
    for at, error in enumerate(errors):
        name = type(error).__name__
        # An import that failed before and was handled is not what this error is about.
        if isinstance(error, ModuleNotFoundError) and (at == 0 or errors[at - 1].__cause__ is error):
            return module_hint(error)
        if name == "CalledProcessError" and at == 0 and is_installer(error.cmd) and not has_network():
            return packages_hint("NAME")
        if name == "gaierror" and not has_network():
            return "the sandbox has no network; code can call the configured MCP servers, see `mcp.help()`"
        if isinstance(error, FileNotFoundError) and at == 0:
            return file_hint(error.filename)
    return None


def has_rules():
    """Returns whether rules let code reach hosts."""
    return "COVE_NETWORK" in modules["os"].environ


def has_network():
    """Returns whether code may reach more than the sandbox's own loopback."""
    if has_rules():
        return True
    try:
        with open("/proc/self/net/dev") as devices:
            return any(":" in line and line.split(":")[0].strip() != "lo" for line in devices)
    except OSError:
        return False


def module_hint(error):
    top = str(error.name or "").partition(".")[0]
    known = getattr(sys, "stdlib_module_names", ())
    if not top.isidentifier() or top in modules or top in known or (has_network() and not has_rules()):
        return None
    import importlib.util

    # Only a part of the package is missing.
    if importlib.util.find_spec(top):
        return None
    name = PACKAGE_NAMES.get(top, top)
    return f"where the rules for the network allow it: `pip install {name}`" if has_rules() else packages_hint(name)


def packages_hint(name):
    found = {}
    for folder in sys.path:
        try:
            entries = sorted(listdir(folder or "."))
        except OSError:
            continue
        for entry in entries:
            package, ending, rest = entry.rpartition(".dist-info")
            if ending and not rest:
                found.setdefault(package.partition("-")[0], package.replace("-", " ", 1))
    named = list(found.values())
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    available = f"; available: {', '.join(named[:MAX_NAMED])}{more}" if named else ""
    return (
        "no packages can be installed in the sandbox, because it has no network"
        + f"{available}; the operator can add others: `cove packages add {name}`"
    )


def is_installer(command):
    """Returns whether a command that failed was to install packages."""
    words = command.split() if isinstance(command, str) else [str(word) for word in command]
    names = [word.rpartition("/")[2] for word in words]
    return "install" in names and any(name in ("pip", "pip3", "npm", "apt-get", "apt", "uv") for name in names)


def file_hint(path):
    if isinstance(path, bytes):
        path = path.decode("utf-8", "replace")
    if not isinstance(path, str):
        return None
    top = path.split("/")[1] if path[:1] == "/" else ""
    is_of_windows = path[1:3] in (":\\", ":/") and path[:1].isalpha()
    if not is_of_windows and path[:2] != "~/":
        if not top or (top not in PEOPLES_FOLDERS and exists("/" + top)):
            return None
    folder = path.rpartition("/")[0] if path[:1] == "/" else "FOLDER"
    reader = file_server()
    other = f", or call the server `{reader}`" if reader else ""
    return (
        "the sandbox does not see the files of this machine; the operator can show it a folder: "
        + f"`--mount {folder or 'FOLDER'}:/data`{other}"
    )


def exists(path):
    try:
        stat(path)
        return True
    except OSError:
        return False


def file_server():
    """Returns the configured server whose name says that it reads files, as code writes it, or None."""
    if b"COVE_MCP" not in environ:
        return None
    try:
        # Starts no server.
        servers = load_library()["ask"]("servers")
    except Exception:
        return None
    for server in servers:
        name = server["name"].lower()
        if "filesystem" in name or name in ("file", "files", "fs"):
            return f"mcp.{server['alias']}"
    return None
