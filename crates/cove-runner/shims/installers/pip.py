# `pip` of a session that has a network: the pip of the sandbox's Python, which installs into the session's environment.
#
# The runner writes it to `.venv/bin`, behind a line that names the Python of that environment.
import importlib.util
import runpy
import sys

if importlib.util.find_spec("pip") is None:
    sys.exit("pip: not installed in this sandbox")
runpy.run_module("pip", run_name="__main__", alter_sys=True)
