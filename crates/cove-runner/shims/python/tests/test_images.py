"""Images: which values are images, and which are sent. A fake replaces matplotlib, which tests must not need."""

import os
import tempfile
import unittest

from driver import Case

PYPLOT = """
import sys, types
class Figure:
    def __init__(self, n): self.n = n
    def savefig(self, buffer, format): buffer.write(b"\\x89PNG\\r\\n" + bytes([self.n]))
plt = types.ModuleType("matplotlib.pyplot")
plt.figures = {1: Figure(1), 2: Figure(2)}
plt.get_fignums = lambda: list(plt.figures)
plt.figure = lambda n: plt.figures[n]
plt.close = lambda which: plt.figures.clear() if which == "all" else None
sys.modules["matplotlib.pyplot"] = plt
"""


class Images(Case):
    def test_figures_are_sent_and_closed_when_the_cell_ends(self):
        done = self.shim.run(PYPLOT)
        self.assertEqual(done.images, [b"p\x89PNG\r\n\x01", b"p\x89PNG\r\n\x02"])
        self.assertEqual(self.shim.run("plt.figures").out, "{}\n")

    def test_a_value_that_is_an_image_is_sent_instead_of_its_text(self):
        done = self.shim.run("x = 1\nb'GIF89a...'")
        self.assertEqual((done.images, done.out), ([b"gGIF89a..."], ""))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "i.webp")
            with open(path, "wb") as file:
                file.write(b"RIFF1234WEBP")
            done = self.shim.run(f"import pathlib\npathlib.Path({path!r})")
        self.assertEqual(done.images, [b"wRIFF1234WEBP"])

    def test_other_values_are_shown_as_text(self):
        self.check("x = 1\nb'plain'", "b'plain'\n")
        self.check("import pathlib\npathlib.Path('missing.png')", "PosixPath('missing.png')\n")
        self.check("b'RIFF1234WAVE'", "b'RIFF1234WAVE'\n")

    def test_a_value_whose_image_cannot_be_made_is_shown_as_text(self):
        self.check("class P:\n    def _repr_png_(self): 1/0\n    def __repr__(self): return 'P!'\nP()", "P!\n")

    def test_images_over_the_limits_are_reported(self):
        done = self.shim.run("x = b'\\x89PNG\\r\\n' + bytes(5 << 20)\nx")
        self.assertEqual((done.images, done.out), ([], ""))
        self.assertIn("was not shown", done.err)


if __name__ == "__main__":
    unittest.main()
