# The Python library for tools, third part: calls that run while the code goes on.
#
# The calls of a thread share one connection, a `Channel`. `PendingCall` adds itself to `Channel.waiting` before its
# request is sent, and `Channel.deal` removes it when the reply has arrived. Who reads the connection depends:
#
# - In a thread with a running event loop, the loop reads it (`listen`), and wakes the futures of those that await.
# - Without a loop, the code that first needs a value reads until that value is there (`Channel.wait`). On the way it
#   settles other calls too, also those of other threads that share the channel, which is why `wait` polls with a timeout.
#
# `Channel.lock` protects the buffers. `torn` is true while a buffer and the socket may disagree: if an interrupt comes
# then, the connection cannot be used any more, and is closed. Many requests in one turn of a loop leave in one write.
# ruff: noqa: F821 (other globals come from wire.py, mcp_module.py and cell.py)

import _operator
import select

# This many requests of one turn of the loop leave at once. Further ones wait for the end of the turn and leave together.
# So a single request does not wait for a turn of its own.
BURST = 8
# The channels, by thread.
channels = {}
# Calls whose value no code has used yet.
unused = {}


class Channel:
    """A connection with any number of open calls."""

    def __init__(self):
        self.line = connect()
        self.line.setblocking(False)
        self.lock = _thread.RLock()
        self.thread = _thread.get_ident()
        self.waiting, self.loops = {}, []
        self.unsent, self.received = bytearray(), bytearray()
        # Requests in this turn of the loop; see the top of this file for `torn`.
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
            # The runner accepts no more bytes just now.
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
                    # An interrupt after the send and before the removal would send the bytes twice.
                    self.torn = True
                    sent = self.line.send(self.unsent)
                    del self.unsent[:sent]
                    self.torn = False
            except BlockingIOError:
                self.torn = False
            except OSError:
                self.close(lost_connection())

    def receive(self):
        """Reads what has arrived, and settles calls. After an interrupt the start of the next reply is unknown."""
        with self.lock:
            try:
                while self.open:
                    self.torn = True
                    data = self.line.recv(1 << 18)
                    self.received += data
                    if not data:
                        self.close(lost_connection())
                    self.deal()
                    self.torn = False
                    if len(data) < 1 << 18:
                        break
            except BlockingIOError:
                self.torn = False
            except MCPError as problem:
                self.close(problem)
            except OSError:
                self.close(lost_connection())

    def deal(self):
        while len(self.received) >= 4:
            size = int.from_bytes(self.received[:4], "big")
            if size > MAX_REPLY:
                raise unreadable_answer()
            if len(self.received) < size + 4:
                return
            with memoryview(self.received) as view, view[4 : size + 4] as frame:
                number, value, error = parse(frame)
            del self.received[: size + 4]
            if number is None and error is not None:
                raise error
            pending = self.waiting.pop(number, None)
            # The reply may be for a call that was forgotten.
            if pending is not None:
                pending._settle(value, error)

    def wait(self, pending):
        """Reads until the call is done, or until another thread has read its reply."""
        poll = select.poll()
        try:
            while pending._open:
                self.flush()
                self.receive()
                number = self.line.fileno()
                if not pending._open:
                    return
                if not self.open or number < 0:
                    raise lost_connection()
                poll.register(number, select.POLLIN | (select.POLLOUT if self.unsent else 0))
                # With a timeout, because another thread may read the reply that this one waits for.
                poll.poll(50)
        except BaseException:
            if self.torn:
                self.close(lost_connection())
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
            # The descriptor must stay reserved until those loops have stopped watching it.
            self.line.shutdown(_socket.SHUT_RDWR)
        else:
            self.line.close()
        self.loops.clear()
        while self.waiting:
            self.waiting.popitem()[1]._settle(None, error)


def channel():
    """Returns the channel of this thread, and closes those of threads that have ended."""
    found = channels.get(_thread.get_ident())
    if found is not None:
        if found.torn and found.open:
            found.close(lost_connection())
        elif not found.waiting:
            # The runner may have closed it while it was idle.
            found.receive()
        if found.open:
            return found
    alive = sys._current_frames()
    for thread in [one for one in channels if one not in alive]:
        channels.pop(thread).close(lost_connection())
    found = channels[_thread.get_ident()] = Channel()
    return found


class PendingCall:
    """A call that has begun. `await` returns its value; any other use waits for the value first."""

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
                value = self._finish(check_answer(self._ask, value))
            except Exception as problem:
                value, error = None, problem if isinstance(problem, MCPError) else unreadable_answer()
        self._value, self._error, self._open = value, error, False
        for future in self._waiters:
            loop = future.get_loop()
            if loop is running_loop():
                wake(future)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(wake, future)
        self._waiters = ()

    def _resolve(self):
        """Returns the value, and waits for it without a loop."""
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
            # Another library's event loop.
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

    # With these methods asyncio treats it as a coroutine: `create_task`, `wait_for` and `run` accept it.

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
        # Libraries ask for such names to find out what an object is. That must not wait.
        if name[:2] == "__" or name.startswith(("_repr_", "_ipython_", "_asyncio", "_is_coroutine", "cr_", "gi_")):
            raise AttributeError(name)
        value = self._resolve()
        if name in METHOD_NAMES and isinstance(value, Record) and name in value:
            # As in the cell, which this code stands in for.
            return Record.__dict__[name].value(value)
        return getattr(value, name)

    def __hash__(self):
        return id(self) >> 4

    def __dir__(self):
        return dir(self._resolve())


def forward(name, function):
    """Returns a method that applies a function to the value of a call."""

    def method(self, *args):
        return function(self._resolve(), *map(resolved, args))

    method.__name__ = name
    return method


def wake(future):
    if not future.done():
        future.set_result(None)


def resolved(value):
    """Returns the value of a pending call, or any other value as it is."""
    return value._resolve() if isinstance(value, PendingCall) else value


def swapped(function):
    """Returns a function of two arguments with the arguments swapped."""
    return lambda value, other: function(other, value)


for name in "lt le eq ne gt ge neg pos invert abs".split():
    setattr(PendingCall, f"__{name}__", forward(f"__{name}__", getattr(_operator, name)))
for name in "add sub mul matmul truediv floordiv mod pow lshift rshift and_ or_ xor".split():
    function, name = getattr(_operator, name), name.rstrip("_")
    setattr(PendingCall, f"__{name}__", forward(f"__{name}__", function))
    setattr(PendingCall, f"__r{name}__", forward(f"__r{name}__", swapped(function)))
for name, function in {
    **{"str": str, "repr": repr, "len": len, "iter": iter, "bool": bool, "int": int, "float": float},
    **{"getitem": lambda value, key: value[key], "contains": lambda value, item: item in value},
    **{"setitem": lambda value, key, item: value.__setitem__(key, item), "format": format},
    **{"delitem": lambda value, key: value.__delitem__(key), "reversed": reversed, "bytes": bytes},
    **{"round": round, "divmod": divmod, "rdivmod": swapped(divmod), "complex": complex},
    **{"index": lambda value: value.__index__(), "call": lambda value, *args: value(*args)},
    **{"fspath": lambda value: value.__fspath__() if hasattr(value, "__fspath__") else str(value)},
}.items():
    setattr(PendingCall, f"__{name}__", forward(f"__{name}__", function))


taught = False


def teach_json():
    """Makes the standard `json`, once it is imported, write a call as its value."""
    global taught
    encoder = sys.modules.get("json.encoder")
    if encoder is not None:
        taught, default = True, encoder.JSONEncoder.default

        def with_calls(self, value):
            return value._resolve() if type(value) is PendingCall else default(self, value)

        encoder.JSONEncoder.default = with_calls


def forget_channels():
    """In a forked child: drops the calls, which belong to the parent."""
    for one in channels.values():
        one.lock, one.open = _thread.RLock(), False
        one.waiting.clear()
        one.line.close()
    channels.clear()
    unused.clear()


def finish_calls(failed):
    """At the end of a cell: waits for the calls whose value it has not used, and reports their errors."""
    first = None
    try:
        while unused and not isinstance(failed, KeyboardInterrupt):
            pending = unused[next(iter(unused))]
            where = pending._where or ("?", 0)
            try:
                pending._resolve()
            except MCPError as error:
                note = f"(this call began in {where[0]}, line {where[1]}, and the cell did not wait for it)"
                error.message = f"{error.message}\n{note}"
                if first is None and failed is None:
                    first = error
                else:
                    sys.stderr.write(f"mcp.{type(error).__name__}: {error}\n")
    finally:
        unused.clear()
    if first is not None:
        raise first
