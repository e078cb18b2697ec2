# The Python library for tools, third part: calls that are under way while the code goes on.
#
# They share a connection per thread. A running event loop reads it by itself; where none runs, whoever needs a
# value first reads until it is there. Many requests made in one turn of a loop leave in one write.
# ruff: noqa: F821 (the rest comes from wire.py, tool.py and cell.py)

import _operator
import select

# Requests that leave at once; the one after them waits for the end of the loop's turn, and all leave together that come
# until then. One that comes alone does not cost a turn of its own.
BURST = 8
# By thread.
channels = {}
# Calls that nobody has looked at yet.
unused = {}


class Channel:
    """A connection with any number of calls under way."""

    def __init__(self):
        self.line = connect()
        self.line.setblocking(False)
        self.lock = _thread.RLock()
        self.thread = _thread.get_ident()
        self.waiting, self.loops = {}, []
        self.unsent, self.came = bytearray(), bytearray()
        self.turn, self.torn, self.open = 0, False, True

    def submit(self, number, frame, pending):
        with self.lock:
            self.waiting[number] = pending
            self.unsent += frame
        loop = running_loop()
        if loop is None or _thread.get_ident() != self.thread:
            self.flush()
            return
        self.listen(loop)
        self.turn += 1
        if self.turn <= BURST:
            self.send(loop)
        elif self.turn == BURST + 1:
            loop.call_soon(self.end_turn, loop)

    def end_turn(self, loop):
        self.turn = 0
        self.send(loop)

    def send(self, loop):
        self.flush()
        if self.unsent and self.open:
            # The runner does not take any more just now.
            loop.add_writer(self.line.fileno(), self.on_writable, loop)

    def on_writable(self, loop):
        self.flush()
        if self.open and not self.unsent:
            loop.remove_writer(self.line.fileno())

    def listen(self, loop):
        if loop not in self.loops and self.open:
            self.loops = [one for one in self.loops if not one.is_closed()] + [loop]
            loop.add_reader(self.line.fileno(), self.receive)

    def flush(self):
        with self.lock:
            try:
                while self.unsent and self.open:
                    # Sent, but not taken off yet: an interrupt in between would send it twice.
                    self.torn = True
                    sent = self.line.send(self.unsent)
                    del self.unsent[:sent]
                    self.torn = False
            except BlockingIOError:
                self.torn = False
            except OSError:
                self.close(lost())

    def receive(self):
        """Takes what has come. Not an interrupt's to break: then nobody knows where the next reply begins."""
        with self.lock:
            try:
                while self.open:
                    self.torn = True
                    data = self.line.recv(1 << 18)
                    self.came += data
                    if not data:
                        self.close(lost())
                    self.deal()
                    self.torn = False
                    if len(data) < 1 << 18:
                        break
            except BlockingIOError:
                self.torn = False
            except MCPError as problem:
                self.close(problem)
            except OSError:
                self.close(lost())

    def deal(self):
        while len(self.came) >= 4:
            size = int.from_bytes(self.came[:4], "big")
            if size > REPLY:
                raise garbage()
            if len(self.came) < size + 4:
                return
            with memoryview(self.came) as view, view[4 : size + 4] as frame:
                number, value, error = parse(frame)
            del self.came[: size + 4]
            if number is None and error is not None:
                raise error
            pending = self.waiting.pop(number, None)
            # One that was forgotten may still be answered.
            if pending is not None:
                pending._settle(value, error)

    def wait(self, pending):
        """Reads until the call is done, whoever else reads meanwhile."""
        poll = select.poll()
        try:
            while pending._open:
                self.flush()
                self.receive()
                number = self.line.fileno()
                if not pending._open:
                    return
                if not self.open or number < 0:
                    raise lost()
                poll.register(number, select.POLLIN | (select.POLLOUT if self.unsent else 0))
                # Not for ever: another thread may read what this one waits for.
                poll.poll(50)
        except BaseException:
            if self.torn:
                self.close(lost())
            raise

    def close(self, error):
        self.open = False
        number = self.line.fileno()
        for loop in self.loops:
            if not loop.is_closed():
                for remove in (loop.remove_reader, loop.remove_writer):
                    if loop is running_loop() or not loop.is_running():
                        remove(number)
                    else:
                        loop.call_soon_threadsafe(remove, number)
        if any(loop.is_running() and loop is not running_loop() for loop in self.loops):
            # Its number must not be given to another file before those loops have let go of it.
            self.line.shutdown(_socket.SHUT_RDWR)
        else:
            self.line.close()
        self.loops.clear()
        while self.waiting:
            self.waiting.popitem()[1]._settle(None, error)


def channel():
    found = channels.get(_thread.get_ident())
    if found is not None:
        if found.torn and found.open:
            found.close(lost())
        elif not found.waiting:
            # It may have been closed while nobody used it.
            found.receive()
        if found.open:
            return found
    alive = sys._current_frames()
    for thread in [one for one in channels if one not in alive]:
        channels.pop(thread).close(lost())
    found = channels[_thread.get_ident()] = Channel()
    return found


class Pending:
    """A call that has begun. `await` gives its value; to use it in any other way waits for the value first."""

    __slots__ = "_ask", "_fields", "_finish", "_channel", "_open", "_value", "_error", "_waiters", "_steps", "_where"
    __module__ = "mcp"

    def __init__(self, ask, fields, finish):
        self._ask, self._fields, self._finish = ask, fields, finish
        self._steps, self._where = None, None
        frame = sys._getframe(1)
        while frame is not None and frame.f_globals is globals():
            frame = frame.f_back
        if frame is not None:
            self._where = frame.f_code.co_filename, frame.f_lineno
        if not taught:
            teach_json()
        self._begin()
        unused[id(self)] = self

    def _begin(self):
        number = next(numbers)
        frame = request(number, self._ask, self._fields)
        self._open, self._value, self._error, self._waiters = True, None, None, []
        self._channel = channel()
        self._channel.submit(number, frame, self)

    def _settle(self, value, error):
        if error is None:
            try:
                value = self._finish(sound(self._ask, value))
            except Exception as problem:
                value, error = None, problem if isinstance(problem, MCPError) else garbage()
        self._value, self._error, self._open = value, error, False
        for future in self._waiters:
            loop = future.get_loop()
            if loop is running_loop():
                wake(future)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(wake, future)
        self._waiters = ()

    def _resolve(self):
        """The value, waited for without a loop."""
        unused.pop(id(self), None)
        if self._open:
            self._channel.wait(self)
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._value

    def __await__(self):
        unused.pop(id(self), None)
        loop = running_loop()
        if loop is None:
            # A loop that is not asyncio's.
            return self._resolve()
        while self._open:
            yield from self._arrival(loop)
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._value

    def _arrival(self, loop):
        future = loop.create_future()
        self._waiters.append(future)
        self._channel.listen(loop)
        return future

    # With these it is a coroutine to asyncio: `create_task`, `wait_for` and `run` take it.

    def send(self, value):
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.send(value)

    def throw(self, *error):
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.throw(*error)

    def close(self):
        unused.pop(id(self), None)

    def __getattr__(self, name):
        # Not of what others look for to see what this is: they shall not wait.
        if name[:2] == "__" or name.startswith(("_repr_", "_ipython_", "_asyncio", "_is_coroutine", "cr_", "gi_")):
            raise AttributeError(name)
        return getattr(self._resolve(), name)

    def __hash__(self):
        return id(self) >> 4

    def __dir__(self):
        return dir(self._resolve())


def through(name, function):
    def method(self, *args):
        return function(self._resolve(), *map(settled, args))

    method.__name__ = name
    return method


def wake(future):
    if not future.done():
        future.set_result(None)


def settled(value):
    """The value of a call that is under way, or what it is already."""
    return value._resolve() if isinstance(value, Pending) else value


def turned(function):
    return lambda value, other: function(other, value)


for name in "lt le eq ne gt ge neg pos invert abs".split():
    setattr(Pending, f"__{name}__", through(f"__{name}__", getattr(_operator, name)))
for name in "add sub mul matmul truediv floordiv mod pow lshift rshift and_ or_ xor".split():
    function, name = getattr(_operator, name), name.rstrip("_")
    setattr(Pending, f"__{name}__", through(f"__{name}__", function))
    setattr(Pending, f"__r{name}__", through(f"__r{name}__", turned(function)))
for name, function in {
    **{"str": str, "repr": repr, "len": len, "iter": iter, "bool": bool, "int": int, "float": float},
    **{"getitem": lambda value, key: value[key], "contains": lambda value, item: item in value},
    **{"setitem": lambda value, key, item: value.__setitem__(key, item), "format": format},
    **{"delitem": lambda value, key: value.__delitem__(key), "reversed": reversed, "bytes": bytes},
    **{"round": round, "divmod": divmod, "rdivmod": turned(divmod), "complex": complex},
    **{"index": lambda value: value.__index__(), "call": lambda value, *args: value(*args)},
    **{"fspath": lambda value: value.__fspath__() if hasattr(value, "__fspath__") else str(value)},
}.items():
    setattr(Pending, f"__{name}__", through(f"__{name}__", function))


taught = False


def teach_json():
    """Lets the standard `json`, once it is there, write a call as its value, as every other use of it does."""
    global taught
    encoder = sys.modules.get("json.encoder")
    if encoder is not None:
        taught, default = True, encoder.JSONEncoder.default

        def with_calls(self, value):
            return value._resolve() if type(value) is Pending else default(self, value)

        encoder.JSONEncoder.default = with_calls


def forget():
    """In a child of a fork: the calls are the parent's."""
    for one in channels.values():
        one.lock, one.open = _thread.RLock(), False
        one.waiting.clear()
        one.line.close()
    channels.clear()
    unused.clear()


def conclude(failed):
    """A cell ends: waits for the calls that it has begun and not looked at, and reports what became of them."""
    first = None
    try:
        while unused and not isinstance(failed, KeyboardInterrupt):
            pending = unused[next(iter(unused))]
            where = pending._where or ("?", 0)
            try:
                pending._resolve()
            except MCPError as error:
                note = f"(this call was begun in {where[0]}, line {where[1]}, and nobody waited for it)"
                error.message = f"{error.message}\n{note}"
                if first is None and failed is None:
                    first = error
                else:
                    sys.stderr.write(f"mcp.{type(error).__name__}: {error}\n")
    finally:
        unused.clear()
    if first is not None:
        raise first
