# The Python shim, on demand: images that a cell shows.
#
# Run by boot.py in the globals of the shim, for a cell that mentions plots, or shows a value that is an image.
# Figures of matplotlib go out when the cell ends and are closed then, as in a notebook.
# ruff: noqa: F821 (the globals and builtins come from boot.py and cell.py)

# What the runner takes: size of each, and how many of a cell.
image_room, image_most = 4 << 20, 16
kinds = (b"\x89PNG\r\n", b"p"), (b"\xff\xd8\xff", b"j"), (b"GIF8", b"g"), (b"RIFF", b"w")
suffixes = ".png", ".jpg", ".jpeg", ".gif", ".webp"
sent = 0


def draw():
    # A cell begins. What `plt.show()` says of the agg backend would be wrong here: figures are shown.
    global sent
    sent = 0
    import warnings

    warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive", UserWarning)


def emit(data):
    # Whether `data` is an image. One that may not go out is told of instead.
    global sent
    kind = [name for magic, name in kinds if data[: len(magic)] == magic]
    if not kind or (kind == [b"w"] and data[8:12] != b"WEBP"):
        return False
    if len(data) > image_room or sent >= image_most:
        limits = len(data), image_most, image_room
        sys.stderr.write("[an image of %d bytes was not shown: at most %d of %d each]\n" % limits)
        return True
    sent += 1
    data = b"I" + kind[0] + data
    data = len(data).to_bytes(4, "big") + data
    while data:
        data = data[write(3, data) :]
    return True


def image_of(value):
    # The bytes of a value that is an image, or None.
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
                return file.read(image_room + 1)
    except Exception:
        pass


def show_image(value):
    if hasattr(type(value), "_show_"):
        # A tool's result of text and images.
        text, images = value._show_()
        if images and text:
            sys.stdout.write(text + "\n")
        return any([emit(image) for image in images])
    data = image_of(value)
    if type(value).__name__ == "Figure" and "matplotlib.pyplot" in modules:
        # Or it goes out once more with the others.
        modules["matplotlib.pyplot"].close(value)
    return isinstance(data, bytes) and emit(data)


def show_figures():
    pyplot = modules.get("matplotlib.pyplot")
    for number in pyplot.get_fignums() if pyplot else ():
        show_image(pyplot.figure(number))
    if pyplot:
        pyplot.close("all")
