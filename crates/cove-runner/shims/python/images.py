# The Python shim: images that a cell shows.
#
# boot.py runs it in the globals of the shim, for a cell that mentions plots or shows a value that is an image.
# Figures of matplotlib are sent and closed when the cell ends, as in a notebook.
# ruff: noqa: F821 (the globals and builtins come from boot.py and cell.py)

images = True
# What the runner accepts: the size of one image, and how many a cell may show.
max_image_bytes, max_images = 4 << 20, 16
formats = (b"\x89PNG\r\n", b"p"), (b"\xff\xd8\xff", b"j"), (b"GIF8", b"g"), (b"RIFF", b"w")
suffixes = ".png", ".jpg", ".jpeg", ".gif", ".webp"
sent = 0


def begin_images():
    # Prepares for a cell. Silences the warning of `plt.show()` that the agg backend shows nothing: here it does.
    global sent
    sent = 0
    import warnings

    warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive", UserWarning)


def send_image(data):
    # Sends `data` if it is an image, and returns whether it is. Prints a note for an image over the limits.
    global sent
    kind = [name for magic, name in formats if data[: len(magic)] == magic]
    if not kind or (kind == [b"w"] and data[8:12] != b"WEBP"):
        return False
    if len(data) > max_image_bytes or sent >= max_images:
        limits = len(data), max_images, max_image_bytes
        sys.stderr.write("[an image of %d bytes was not shown: a cell may show %d images of at most %d bytes]\n" % limits)
        return True
    sent += 1
    data = b"I" + kind[0] + data
    data = len(data).to_bytes(4, "big") + data
    while data:
        data = data[write(3, data) :]
    return True


def image_of(value):
    # Returns the bytes of a value that is an image, or None.
    if isinstance(value, bytes):
        return value
    try:
        if type(value).__name__ == "Figure" and hasattr(value, "savefig"):
            import io

            buffer = io.BytesIO()
            value.savefig(buffer, format="png")
            return buffer.getvalue()
        if hasattr(type(value), "_repr_png_"):
            return value._repr_png_()
        if hasattr(value, "__fspath__") and str(value).lower().endswith(suffixes):
            with open(value, "rb") as file:
                return file.read(max_image_bytes + 1)
    except Exception:
        pass


def show_image(value):
    # Sends a value that is an image or has images, and returns whether it did.
    if hasattr(type(value), "_show_"):
        # A result of a tool, with text and images.
        text, images = value._show_()
        if images and text:
            sys.stdout.write(text + "\n")
        return any([send_image(image) for image in images])
    data = image_of(value)
    if type(value).__name__ == "Figure" and "matplotlib.pyplot" in modules:
        # Otherwise it would be sent again at the end of the cell.
        modules["matplotlib.pyplot"].close(value)
    return isinstance(data, bytes) and send_image(data)


def show_figures():
    # Sends and closes all open figures of matplotlib.
    pyplot = modules.get("matplotlib.pyplot")
    for number in pyplot.get_fignums() if pyplot else ():
        show_image(pyplot.figure(number))
    if pyplot:
        pyplot.close("all")
