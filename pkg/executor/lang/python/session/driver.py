# The driver of a Python session: it executes cells in the module __main__ and speaks the protocol of pkg/session/protocol. It has what every
# session needs; tools.py has the rest, and is compiled when a session first needs it. See session.go.
#
# Usage: python3 driver.py PATH-OF-tools.py, with a socket as standard input.
import builtins as _shared

# A cell may replace built-in functions and functions of modules. The driver therefore has built-in functions of its own, and names for
# the functions that it calls.
__builtins__ = dict(vars(_shared))

import _ast  # noqa: E402
import _io  # noqa: E402
import _signal  # noqa: E402
import _thread  # noqa: E402
import posix  # noqa: E402
import select as _select  # noqa: E402
import sys  # noqa: E402
from _json import encode_basestring as _quote  # noqa: E402

DESCRIPTOR = 63  # of the socket; the two below are copies of standard output and error
LIMIT_TEXT = 1 << 20  # characters of a value's text
LIMIT_FRAME = 7 << 20  # bytes of a display, below protocol.MaxBody
LIMIT_MESSAGE = 8 << 10  # characters of an error's message
PATIENCE = 50  # milliseconds after which a thread that waits for a line looks whether its cell still runs

core = sys.modules["__main__"]
main = type(sys)("__main__")
namespace = main.__dict__
files = {__file__, sys.argv[1]}  # whose frames are not shown in tracebacks
sources = {}  # text of the cells by file name

write, read, fstat, exit_now, getpid = posix.write, posix.read, posix.fstat, posix._exit, posix.getpid
get_ident, set_handler = _thread.get_ident, _signal.signal
main_thread = get_ident()


def load_tools():
    """Returns tools.py as a module."""
    global tools
    if tools is None:
        made = type(sys)("sandbox_run_session_tools")
        made.__builtins__, made.core = __builtins__, core
        exec(compile(tools_text, sys.intern(tools_path), "exec"), made.__dict__)
        tools = made
    return tools


tools = None
tools_path = sys.argv[1]
with _io.open(tools_path, "rb") as _file:
    tools_text = _file.read()

# Interrupts. Foreign code is interrupted by an exception; what the driver does itself is not. `held` counts the sections of the main thread
# that must not be left half-way, such as the write of a frame: an interrupt then stays pending.
held = 1
pending = False
waiting = False  # for the next frame


def on_interrupt(number, frame):
    global pending
    if getpid() != owner:
        raise KeyboardInterrupt
    if waiting:  # the interrupt is meant for a cell that has been sent already, or for none
        pending = bool(buffer) or is_readable(0)
    elif held or frame is not None and frame.f_code is call_foreign.__code__:
        pending = True
    elif not (tools is not None and tools.cancel_task(frame)):
        raise KeyboardInterrupt


def call_foreign(function, *arguments):
    """Calls a function that runs foreign code. Returns its value and None, or None and the exception. Interrupts are never raised in this
    function's own frame, so that no exception escapes."""
    global held
    held = 0
    try:
        return function(*arguments), None
    except BaseException as e:
        return None, e
    finally:
        held = 1


# Frames.
source = target = DESCRIPTOR
buffer = bytearray()  # read, and not used yet
unsent = bytearray()
sending, asking = _thread.allocate_lock(), _thread.allocate_lock()
owner = getpid()  # another process with this state is a fork that a cell made
cell = 0  # the running cell
queue = []  # frames that came while a cell was waiting for another
spare = []  # descriptors that a fork keeps until the session has opened its ends of the pipes


def send(kind, number, body=b"{}"):
    """Writes a frame as a whole, whatever interrupts it."""
    global held, pending
    mine = get_ident() == main_thread
    if mine:
        held += 1
    try:
        with sending:
            unsent.extend(b"%s %d %d\n" % (kind, number, len(body)))
            unsent.extend(body)
            while unsent:
                del unsent[:write(target, unsent)]
    except OSError:
        exit_now(1)  # the session has ended, or the cell has closed its descriptor
    finally:
        if mine:
            held -= 1
    if mine and pending and not held:
        pending = False
        raise KeyboardInterrupt


def is_readable(milliseconds):
    """Waits for data on the socket; None: without a bound. A poll object can not be used twice at a time, by a handler or a thread."""
    poller = _select.poll()
    poller.register(source, _select.POLLIN)
    return bool(poller.poll(milliseconds))


def fill():
    """Reads what the socket has, which blocks unless it is readable."""
    data = read(source, 1 << 16)
    if not data:
        if cell:
            exit_now(1)
        leave()
    buffer.extend(data)
    while spare:  # of a fork
        posix.close(spare.pop())


def take_frame():
    """Takes a whole frame from the buffer; None if there is none yet."""
    end = buffer.find(b"\n")
    if end < 0:
        return None
    words = buffer[:end].split(b" ")
    length = int(words[2])
    if len(buffer) < end + 1 + length:
        return None
    body = bytes(buffer[end + 1:end + 1 + length])
    del buffer[:end + 1 + length]
    return bytes(words[0]), int(words[1]), bytes(words[3]) if len(words) > 3 else b"", body


def next_frame():
    """Waits for the next frame, while no cell runs."""
    global waiting
    while True:
        frame = queue.pop(0) if queue else take_frame()
        if frame is not None:
            waiting = False
            return frame
        is_readable(None)
        waiting = False  # an interrupt from here on is meant for the frame that arrives
        fill()


def ask(kind, body, answers):
    """Sends a question of the running cell and waits for one of the answers: its kind and its body. None: no cell runs."""
    global held
    number = cell
    if not number or getpid() != owner:
        return None
    mine = get_ident() == main_thread
    with asking:
        flush()
        send(kind, number, body)
        while cell == number:
            if mine:
                held += 1
            try:
                frame = take_frame()
            finally:
                if mine:
                    held -= 1
            if frame is None:
                if is_readable(None if mine else PATIENCE):
                    if mine:
                        held += 1
                    try:
                        fill()
                    finally:
                        if mine:
                            held -= 1
            elif frame[0] in answers and frame[1] == number:
                return frame[0], frame[3]
            elif frame[0] == b"close":
                exit_now(0)
            elif frame[0] in (b"execute", b"check", b"complete", b"inspect", b"variables", b"packages", b"fork"):
                queue.append(frame)
    return None


def quote(text):
    """JSON of a string. A surrogate becomes an escape, which JSON allows and UTF-8 does not."""
    return _quote(text).encode("utf-8", "backslashreplace")


# Input. sys.stdin is a text stream over lines of the client.
class Lines(_io._RawIOBase):
    name, mode, rest, prompt = "<stdin>", "rb", b"", ""

    def readable(self):
        return True

    def fileno(self):
        return 0  # /dev/null

    def readinto(self, into):
        if not self.rest:
            line = ask_line(self.prompt)
            if line is None:
                return 0
            self.rest = line + b"\n"
        size = min(len(into), len(self.rest))
        into[:size], self.rest = self.rest[:size], self.rest[size:]
        return size


def ask_line(prompt, password=False):
    """The client's next line, without its end; None at the end of file."""
    body = b'{"prompt":%s%s}' % (quote(prompt[:LIMIT_MESSAGE]), b',"password":true' if password else b"")
    answer = ask(b"input", body, (b"input", b"end_input"))
    return answer[1] if answer is not None and answer[0] == b"input" else None


def input(prompt="", /):
    """Ask the client for a line and return it without its end. The end of file raises EOFError."""
    if sys.stdin is not stdin:
        return _shared_input(prompt)
    lines.prompt = str(prompt)
    try:
        line = stdin.readline()
    finally:
        lines.prompt = ""
    if not line:
        raise EOFError
    return line[:-1] if line.endswith("\n") else line


_shared_input = _shared.input
lines = Lines()
stdin = _io.TextIOWrapper(_io.BufferedReader(lines), "utf-8", "surrogateescape")


# Output.
streams = {1: sys.stdout, 2: sys.stderr}
copies = {1: DESCRIPTOR - 2, 2: DESCRIPTOR - 1}


def flush():
    """Flushes what the cell writes to."""
    for stream in sys.stdout, sys.stderr:
        if stream is not None:
            try:
                stream.flush()
            except Exception:
                pass  # closed by the cell, or without this method


def restore():
    """Makes standard streams usable that the cell has closed, and writes what they hold."""
    for number, stream in streams.items():
        try:
            fstat(number)
        except OSError:
            try:
                posix.dup2(copies[number], number)
            except OSError:
                continue  # the cell has closed the copies, too
        name = "stdout" if number == 1 else "stderr"
        if stream is None or stream.closed:
            streams[number] = _io.open(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
            if getattr(sys, name, None) is stream:
                setattr(sys, name, streams[number])
        else:
            try:
                stream.flush()
            except Exception:
                pass
    try:
        fstat(0)
    except OSError:
        null = posix.open("/dev/null", posix.O_RDONLY)
        if null != 0:
            posix.dup2(null, 0)
            posix.close(null)


def is_connected():
    """Reports whether the descriptors are still the session's."""
    try:
        return (fstat(source).st_ino, fstat(target).st_ino) == connection
    except OSError:
        return False


# Values.
simple = {int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset}  # which have no other form than their text
previous = None  # the last result


def text_of(value):
    """The text of a value, within the bound."""
    text = repr(value)
    if len(text) > LIMIT_TEXT:
        text = "%s\n... (%d of %d characters shown)" % (text[:LIMIT_TEXT], LIMIT_TEXT, len(text))
    return text


def show_result(value):
    """sys.displayhook of a session."""
    global previous
    if value is None:
        return
    if not cell or getpid() != owner:
        return print(repr(value))
    if type(value) in simple:
        flush()
        send(b"display", cell, b'{"data":{"text/plain":%s},"result":true}' % quote(text_of(value)))
    else:
        load_tools().show(value, result=True)
    if namespace.get("_", previous) is previous:  # else the user has a variable of this name
        namespace["___"], namespace["__"], namespace["_"] = namespace.get("__"), namespace.get("_"), value
        previous = value
    namespace["_%d" % cell] = value


def display(*values, **options):
    """Show values. Options: display_id (True: a new one), update, raw (the value is a dict of MIME types), metadata."""
    return load_tools().display(*values, **options)


def update_display(value, *, display_id, **options):
    """Replace what display(value, display_id=...) has shown."""
    return load_tools().display(value, display_id=display_id, update=True, **options)


# Cells.
RESULT = " result"  # a name that no code can have
AWAIT, TREE, COROUTINE = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, _ast.PyCF_ONLY_AST, 0x80
FUTURE = 0x1FE0000  # flags of `from __future__ import`
flags = 0  # those of the cells so far


def parse(text, name):
    return compile(text, name, "exec", TREE | AWAIT | flags, True)


def compile_cell(text, name):
    """Compiles a cell. The value of a last expression is stored under RESULT, unless a semicolon follows it."""
    global flags
    try:
        tree = parse(text, name)
    except SyntaxError as e:
        tree, text = load_tools().parse_magic(text, name, e)
    if tree.body and type(tree.body[-1]) is _ast.Expr:
        last = tree.body[-1]
        end = last.value.end_lineno, last.value.end_col_offset
        if ";" not in text or not ends_silently(text, *end):
            place = {n: getattr(last, n) for n in ("lineno", "col_offset", "end_lineno", "end_col_offset")}
            tree.body[-1] = _ast.Assign([_ast.Name(RESULT, _ast.Store(), **place)], last.value, **place)
    code = compile(tree, name, "exec", AWAIT | flags, True)
    flags |= code.co_flags & FUTURE
    return code


def ends_silently(text, line, column):
    """Reports whether a semicolon follows the expression that ends there."""
    rest = text.encode("utf-8", "replace").split(b"\n")[line - 1:]
    return b"\n".join([rest[0][column:]] + rest[1:]).lstrip(b" \t\r\n)").startswith(b";")


def run_code(code):
    """Runs the code of a cell and returns the value of its last expression."""
    if code.co_flags & COROUTINE:
        load_tools().run_coroutine(eval(code, namespace))
    else:
        exec(code, namespace)
    return namespace.pop(RESULT, None)


def run_text(text, name):
    global pending
    if pending:
        pending = False
        raise KeyboardInterrupt
    if text.startswith("%%"):
        value = load_tools().run_cell_magic(text, name)
    else:
        if "IPython" in text or "ipython" in text:
            load_tools().start_ipython()
        value = run_code(compile_cell(text, name))
    sys.displayhook(value)
    flush()


def add_source(name, text):
    sources[name] = text
    linecache = sys.modules.get("linecache")
    if linecache is not None:
        keep_source(linecache, name)


def keep_source(linecache, name):
    text = sources[name]
    linecache.cache[name] = (len(text), None, [line + "\n" for line in text.split("\n")], name)


def execute(number, body):
    global cell, pending, waiting
    name = "<cell %d>" % number
    cell = number
    namespace.pop(RESULT, None)
    text = body.decode("utf-8", "replace")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")  # as Python reads files
    add_source(name, text)
    report = None
    _, error = call_foreign(run_text, text, name)
    if error is not None and not isinstance(error, SystemExit):
        report, error = report_error(error, name)
    if getpid() != owner:
        leave_fork(error, report)
    if error is not None:
        restore()
        leave(error)
    cell = 0
    with asking:  # a thread that waits for a line gives up
        pass
    restore()
    set_handler(_signal.SIGINT, on_interrupt)
    if not is_connected():
        write(2, b"sandbox-run: the cell has closed the descriptor of the session\n")
        exit_now(1)
    waiting, pending = True, False
    send(b"done", number, report or b'{"ok":true}')


def report_error(error, name):
    """Prints an exception and returns the body of the frame done, and the SystemExit by which the user's hook has left."""
    report, failed = call_foreign(load_tools().report, error, name)
    if failed is not None:  # what foreign code does while its exception is printed
        kind = "KeyboardInterrupt" if isinstance(error, KeyboardInterrupt) else type(error).__name__
        interrupted = b',"interrupted":true' if isinstance(error, KeyboardInterrupt) else b""
        report = b'{"ok":false,"status":1%s,"error":{"name":%s}}' % (interrupted, quote(str(kind)[:LIMIT_MESSAGE]))
    return report, failed if isinstance(failed, SystemExit) else None


def leave(error=None):
    """Ends the interpreter without waiting for threads."""
    set_handler(_signal.SIGINT, _signal.default_int_handler)
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown = lambda: None
    raise SystemExit(0) if error is None else error


def leave_fork(error, report):
    """Ends a process that a cell has forked and that has reached the end of the cell."""
    code = 0 if report is None else 1
    if error is not None:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if code == 1 and error.code != 1:
            print(error.code, file=sys.stderr)
    flush()
    exit_now(code & 0xFF)


def after_fork():
    """Runs in each process that a cell forks: it is not the session's driver."""
    global sending, asking, main_thread
    if not forking:
        for number in {source, target, *copies.values()}:
            try:
                posix.close(number)
            except OSError:
                pass
        sending, asking = _thread.allocate_lock(), _thread.allocate_lock()
        main_thread = get_ident()


forking = False  # by the session


class Hooks:
    """A finder that finds nothing, and changes two modules when they are imported."""

    def find_spec(self, name, path=None, target=None):
        change = changes.pop(name, None)
        if change is None:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = Changing(spec, spec.loader, change)
                    return spec
        return None


class Changing:
    """A loader that changes the module which another has loaded."""

    def __init__(self, spec, loader, change):
        self.spec, self.loader, self.change = spec, loader, change

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.spec.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.change(module)


def change_linecache(module):
    for name in list(sources):
        keep_source(module, name)


def change_getpass(module):
    def getpass(prompt="Password: ", stream=None):
        """Ask the client for a line that is not shown."""
        line = ask_line(str(prompt), password=True)
        if line is None:
            raise EOFError
        return line.decode("utf-8", "surrogateescape")

    module.getpass = getpass


changes = {"linecache": change_linecache, "getpass": change_getpass}


def connect():
    """Moves the socket and sets up the streams."""
    global connection
    for number, copy in copies.items():
        try:
            posix.dup2(number, copy, inheritable=False)
        except OSError:
            pass  # started without it
    posix.dup2(0, DESCRIPTOR, inheritable=False)
    null = posix.open("/dev/null", posix.O_RDONLY)
    posix.dup2(null, 0)
    posix.close(null)
    connection = fstat(source).st_ino, fstat(target).st_ino


def set_up():
    for stream in sys.stdout, sys.stderr:
        if stream is not None:
            stream.reconfigure(line_buffering=True)  # each line is one write
    if sys.stdin is not None:
        sys.stdin.close()
    sys.stdin = sys.__stdin__ = stdin
    sys.displayhook = show_result
    sys.argv[:] = [""]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = ""
    main.__builtins__, main.__annotations__ = _shared, {}
    sys.modules["__main__"] = main
    _shared.input, _shared.display, _shared.update_display = input, display, update_display
    for name, change in list(changes.items()):
        if name in sys.modules:
            changes.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, Hooks())
    if hasattr(posix, "register_at_fork"):
        posix.register_at_fork(after_in_child=after_fork)


def send_ready():
    version = "%d.%d.%d" % sys.version_info[:3]
    send(b"ready", 0, b'{"protocol":1,"language":"python","version":%s,"features":["check","complete","inspect","variables","packages","fork",'
         b'"install"],"banner":%s}' % (quote(version), quote("Python " + version)))


def answer(kind, number, argument, body):
    """Answers a question. Foreign code may run, for example a __dir__, and may be interrupted."""
    global pending, waiting
    reply, error = call_foreign(load_tools().answer, kind, argument, body)
    if isinstance(error, SystemExit):
        leave(error)
    waiting, pending = True, False
    send(b"reply", number, reply if error is None else load_tools().empty_reply(kind))


def serve():
    global waiting, pending
    waiting = True
    set_handler(_signal.SIGINT, on_interrupt)
    send_ready()
    while True:
        kind, number, argument, body = next_frame()
        if kind == b"execute":
            execute(number, body)
        elif kind == b"fork":
            load_tools().fork(number, body)
        elif kind in (b"check", b"complete", b"inspect", b"variables", b"packages"):
            answer(kind, number, argument, body)
        elif kind == b"close":
            leave()
        waiting, pending = True, False  # others are late answers


connect()
set_up()
serve()
