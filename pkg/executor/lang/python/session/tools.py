# The part of the driver of a Python session that not every session needs: tracebacks, asynchronous cells, displays, magics, questions, forks.
# driver.py compiles it at the first need; `core` is that module.
import json
import os
import posix
import re
import sys
import types

namespace, MISSING = core.namespace, object()  # noqa: F821
LIMIT_DISPLAY = 4 << 20  # bytes of one form of a value
LIMIT_NAMES, LIMIT_VALUE, LIMIT_INSPECTED = 1000, 200, 64 << 10


# Tracebacks.
def report(error, name):
    """Prints an exception as Python does, without the driver's frames, and returns the body of the frame done."""
    hide_frames(error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    sys.last_exc = error
    core.flush()
    if sys.excepthook is not sys.__excepthook__:
        sys.excepthook(type(error), error, error.__traceback__)
    else:
        import traceback

        traceback.print_exception(type(error), error, error.__traceback__)
    kind, message, line = type(error).__name__, "", 0
    if isinstance(error, SyntaxError) and error.filename == name:
        message, line = error.msg, error.lineno
    else:
        at = error.__traceback__
        while at is not None:
            if at.tb_frame.f_code.co_filename == name:
                line = at.tb_lineno
            at = at.tb_next
        try:
            message = str(error)
        except Exception:
            message = "<exception str() failed>"
    done = {"ok": False, "status": 1}
    if isinstance(error, KeyboardInterrupt):
        done["interrupted"] = True
    done["error"] = {"name": str(kind)[:1000], "message": str(message or "")[:core.LIMIT_MESSAGE], "line": max(int(line or 0), 0)}
    core.flush()
    return json.dumps(done).encode()


def hide_frames(error):
    """Removes the driver's frames, and those of the event loop before the cell's own, from an exception and all that it refers to."""
    seen, waiting = set(), [error]
    asyncio = sys.modules.get("asyncio")
    library = os.path.dirname(asyncio.__file__) + os.sep if asyncio else "\0"
    while waiting and len(seen) < LIMIT_NAMES:
        error = waiting.pop()
        if not isinstance(error, BaseException) or id(error) in seen:
            continue
        seen.add(id(error))
        waiting += error.__cause__, error.__context__
        if isinstance(getattr(error, "exceptions", None), tuple):
            waiting += error.exceptions
        kept, at, first = [], error.__traceback__, True
        ours = at is not None and at.tb_frame.f_code.co_filename in core.files
        while at is not None:
            file = at.tb_frame.f_code.co_filename
            if file not in core.files and not (ours and first and file.startswith(library)):
                kept.append(at)
                first = False
            at = at.tb_next
        for at, after in zip(kept, kept[1:] + [None]):
            at.tb_next = after
        error.__traceback__ = kept[0] if kept else None


# Asynchronous cells. One event loop serves all cells; it runs while an asynchronous cell runs.
loop = task = None
cancelled = False


def run_coroutine(coroutine):
    global loop, task, cancelled
    import asyncio

    if loop is None or loop.is_closed():
        loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    mine = task = loop.create_task(coroutine)
    cancelled = False
    task.add_done_callback(stop_loop)
    try:
        try:
            loop.run_forever()
        except BaseException:
            if not mine.done():  # raised by another task or callback
                mine.cancel()
                loop.run_forever()
            raise
    finally:
        task = None
    if mine.cancelled() and cancelled:
        try:
            mine.result()
        except asyncio.CancelledError as e:
            raise KeyboardInterrupt().with_traceback(e.__traceback__) from None
    mine.result()


def stop_loop(done):
    if done is task:
        loop.stop()


def cancel_task(frame):
    """Interrupts a task while the event loop itself runs, which an exception would damage. False: the handler may raise one."""
    global cancelled
    if task is None or cancelled or frame is None:
        return False
    import asyncio
    import selectors

    inner = asyncio.base_events.BaseEventLoop.run_forever, asyncio.Handle._run, selectors.DefaultSelector.select
    if frame.f_code.co_filename not in {f.__code__.co_filename for f in inner}:
        return False
    cancelled = True
    loop.call_soon_threadsafe(task.cancel)
    return True


# Displays.
FORMS = {
    "text/html": "_repr_html_", "text/markdown": "_repr_markdown_", "text/latex": "_repr_latex_", "image/svg+xml": "_repr_svg_",
    "application/json": "_repr_json_", "application/javascript": "_repr_javascript_", "image/png": "_repr_png_", "image/jpeg": "_repr_jpeg_",
}


def show(value, result=False, **options):
    data, metadata = bundle(value)
    send_display(data, metadata, result=result, **options)


def bundle(value):
    """Returns the forms of a value by MIME type, and their metadata."""
    data, metadata, kind = {}, {}, type(value)
    for form, name in (("", "_repr_mimebundle_"), *FORMS.items()):
        method = getattr(kind, name, None)
        if form in data or not callable(method):
            continue
        try:
            made = method(value, include=None, exclude=None) if not form else method(value)
        except NotImplementedError:
            continue
        except Exception:
            import traceback

            traceback.print_exc()  # the other forms are still shown
            continue
        about = {}
        if isinstance(made, tuple) and len(made) == 2:
            made, about = made
        if not form:
            data.update(made if isinstance(made, dict) else {})
            metadata.update(about if isinstance(about, dict) else {})
        elif made is not None:
            data[form] = made
            if about:
                metadata[form] = about
    if not isinstance(data.get("text/plain"), str):
        data["text/plain"] = core.text_of(value)
    return data, metadata


def encode_form(form, value):
    """JSON of one form of a value; None if it is not one or too large."""
    if isinstance(value, (bytes, bytearray)):
        import binascii

        value = binascii.b2a_base64(value, newline=False).decode()
    if isinstance(value, str):
        if len(value) > LIMIT_DISPLAY:
            return None
        made = core.quote(value)
    elif form.endswith("json"):
        try:
            made = json.dumps(value, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError):
            return None
    else:
        return None
    return made if len(made) <= LIMIT_DISPLAY else None


def send_display(data, metadata, result=False, name=None, update=False):
    plain = data.get("text/plain")
    plain = plain if isinstance(plain, str) else ""
    if len(plain) > core.LIMIT_TEXT:
        plain = plain[:core.LIMIT_TEXT] + "\n..."
    if not core.cell or os.getpid() != core.owner:
        return print(plain)
    parts = [b'"text/plain":' + core.quote(plain)]
    left = core.LIMIT_FRAME - len(parts[0])
    for form, value in data.items():
        if form == "text/plain" or not isinstance(form, str) or len(form) > 100:
            continue
        made = encode_form(form, value)
        if made is not None and len(made) + 200 < left:
            parts.append(core.quote(form) + b":" + made)
            left -= len(made) + 200
    body = b'{"data":{' + b",".join(parts) + b"}"
    about = encode_form("json", metadata) if metadata else None
    if about is not None and len(about) < min(left, 1 << 16):
        body += b',"metadata":' + about
    if result:
        body += b',"result":true'
    if name is not None:
        body += b',"display_id":' + core.quote(str(name)[:200])
    if update:
        body += b',"update":true'
    core.flush()
    core.send(b"display", core.cell, body + b"}")


class DisplayHandle:
    """Updates a value that display has shown."""

    def __init__(self, name):
        self.display_id = name

    def display(self, value, **options):
        display(value, display_id=self.display_id, **options)

    def update(self, value, **options):
        display(value, display_id=self.display_id, update=True, **options)

    def __repr__(self):
        return "<DisplayHandle display_id=%s>" % self.display_id


def display(*values, display_id=None, update=False, raw=False, metadata=None, **_):
    if display_id is True:
        display_id = os.urandom(8).hex()
    if update and display_id is None:
        raise TypeError("display_id is required for an update")
    for value in values:
        data, about = (dict(value), {}) if raw else bundle(value)
        send_display(data, dict(about, **(metadata or {})), name=display_id, update=update)
    return DisplayHandle(display_id) if display_id is not None and not update else None


# Magics. A cell is first compiled as it is: valid Python is never changed. A line at which that fails, and which looks like a magic, becomes
# a call.
MAGIC = re.compile(r"(?P<indent>\s*)(?P<target>[A-Za-z_][\w.,\[\]'\" ]*=\s*)?(?P<mark>!!|!|%)(?P<rest>.*)", re.S)
HELP = re.compile(r"\s*\?{0,2}([A-Za-z_][\w.]*)\?{1,2}\s*|\s*\?{1,2}([A-Za-z_][\w.]*)\s*")
CALL = "__line_magic__"


class UsageError(Exception):
    """A magic that does not exist, or is used wrongly."""


class InstallError(Exception):
    """Packages were not installed."""


UsageError.__module__ = InstallError.__module__ = "builtins"  # printed without a module


def parse_magic(text, name, error):
    """Parses a cell that is no Python. Returns its tree and the text of that."""
    lines, done = text.split("\n"), {}
    while True:
        at = (error.lineno or 0) - 1
        if at in done and error.text is not None:
            error.text = done[at]
        if at in done or not 0 <= at < len(lines) or not change_line(lines, at, done):
            raise error from None
        changed = "\n".join(lines)
        try:
            return core.parse(changed, name), changed
        except SyntaxError as e:
            error = e


def change_line(lines, at, done):
    """Replaces a magic by a call, with the lines that continue it. False: it is none."""
    line, end = lines[at], at + 1
    while line.endswith("\\") and end < len(lines):
        line, end = line[:-1] + lines[end], end + 1
    made = call_of(line)
    if made is None:
        return False
    done[at] = lines[at]
    lines[at:end] = [made] + [""] * (end - at - 1)
    return True


def call_of(line):
    found = HELP.fullmatch(line)
    if found:
        return "%s('pinfo', %r)" % (CALL, found.group(1) or found.group(2))
    found = MAGIC.fullmatch(line)
    if not found:
        return None
    indent, target, mark, rest = found.group("indent"), found.group("target") or "", found.group("mark"), found.group("rest").strip()
    if mark == "%":
        name, _, rest = rest.partition(" ")
        if not name or not re.fullmatch(r"[A-Za-z_][\w.]*", name):
            return None
        rest = rest.strip()
    else:
        pip = re.fullmatch(r"(?:python3? -m )?pip3?\s+(install\s.*)", rest, re.S)
        if mark == "!" and pip and not target and not re.search(r"[|;&<>$]", rest):
            name, rest = "pip", pip.group(1)
        else:
            name = "sx" if target or mark == "!!" else "system"
    call = "%s(%r, %r)" % (CALL, name, rest)
    if name == "time" and is_coroutine(rest):
        call = "(await %s(%r, %r))" % (CALL, "time_await", rest)
    return indent + target + call


def is_coroutine(text):
    try:
        return bool(compile(text, "<magic>", "exec", core.AWAIT | core.flags, True).co_flags & core.COROUTINE)
    except (SyntaxError, ValueError):
        return False


def run_line_magic(name, rest):
    frame = sys._getframe(1)
    run = LINES.get(name)
    if run is not None:
        return run(rest, frame)
    shell = start_ipython()
    if shell is not None and shell.find_line_magic(name) is not None:
        return shell.run_line_magic(name, rest, _stack_depth=2)
    if name == "matplotlib":
        return None  # no window system to choose
    raise UsageError("line magic %%%s does not exist%s" % (name, "" if shell else "; IPython is not installed"))


def run_cell_magic(text, name):
    head, _, body = text.partition("\n")
    magic, _, rest = head[2:].strip().partition(" ")
    run = CELLS.get(magic)
    if run is not None:
        return run(rest.strip(), body, name)
    shell = start_ipython()
    if shell is not None and shell.find_cell_magic(magic) is not None:
        return shell.run_cell_magic(magic, rest.strip(), body)
    raise UsageError("cell magic %%%%%s does not exist%s" % (magic, "" if shell else "; IPython is not installed"))


def run_timed(run, *arguments):
    import time

    before, wall = os.times(), time.perf_counter()
    value = run(*arguments)
    print_times(before, wall)
    return value


def print_times(before, wall):
    import time

    wall, after = time.perf_counter() - wall, os.times()
    user = after.user - before.user + after.children_user - before.children_user
    system = after.system - before.system + after.children_system - before.children_system
    print("CPU times: user %s, sys: %s, total: %s\nWall time: %s" % tuple(map(duration, (user, system, user + system, wall))))


def duration(seconds):
    for unit, scale in ("s", 1), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9):
        if seconds >= scale:
            if unit == "s" and seconds >= 60:
                return "%dmin %ds" % divmod(round(seconds), 60)
            return "%.3g %s" % (seconds / scale, unit)
    return "%.3g ns" % (seconds * 1e9)


def compile_line(rest, frame):
    return core.compile_cell("\n" * (frame.f_lineno - 1) + rest, frame.f_code.co_filename)


def magic_time(rest, frame):
    if not rest:
        raise UsageError("%time needs a statement")
    scope = frame.f_globals if frame.f_locals is frame.f_globals else dict(frame.f_locals)
    code = compile_line(rest, frame)
    run_timed(exec, code, frame.f_globals, scope)
    return scope.pop(core.RESULT, None)


async def magic_time_await(rest, frame):
    import time

    code = compile_line(rest, frame)
    before, wall = os.times(), time.perf_counter()
    made = eval(code, frame.f_globals)
    if made is not None:
        await made
    print_times(before, wall)
    return namespace.pop(core.RESULT, None)


def cell_time(rest, body, name):
    if rest:
        raise UsageError("write statements in the lines after %%time")
    return run_timed(lambda: core.run_code(core.compile_cell("\n" + body, name)))


def magic_timeit(rest, frame, body=None):
    import timeit

    number, repeat, quiet = 0, 7, False
    while True:
        found = re.match(r"-(?:([nr])\s*(\d+)|(q))(?:\s+|$)", rest)
        if not found:
            break
        rest = rest[found.end():]
        if found.group(1) == "n":
            number = int(found.group(2))
        elif found.group(1) == "r":
            repeat = max(1, int(found.group(2)))
        else:
            quiet = True
    statement, setup = (rest, "pass") if body is None else (body, rest or "pass")
    timer = timeit.Timer(statement, setup, globals=dict(frame.f_globals, **frame.f_locals) if frame else namespace)
    if not number:
        number, _ = timer.autorange()
    times = [t / number for t in timer.repeat(repeat, number)]
    mean = sum(times) / repeat
    deviation = (sum((t - mean) ** 2 for t in times) / repeat) ** 0.5
    if not quiet:
        print("%s ± %s per loop (mean ± std. dev. of %d run%s, %s loop%s each)" % (
            duration(mean), duration(deviation), repeat, "s"[:repeat != 1], format(number, ","), "s"[:number != 1]))


def expand(text, frame):
    """Replaces {expression} and $name by the values of the cell; what has none stays for the shell."""
    def value(found):
        if found.group(0) == "$$":
            return "$"
        try:
            return str(eval(found.group(1) or found.group(2), frame.f_globals, frame.f_locals))
        except Exception:
            return found.group(0)

    return re.sub(r"\$\$|\$([A-Za-z_]\w*)|\{([^{}]+)\}", value, text)


def shell_path(name):
    import shutil

    return shutil.which(name) or "/bin/sh"


def run_shell(text, program="bash", options=(), **how):
    """Runs a shell to its end. Returns its status and output."""
    import subprocess

    core.flush()
    try:
        made = subprocess.run([shell_path(program), *options, "-c", text], **how)
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None  # without the frames of subprocess
    namespace["_exit_code"] = made.returncode
    return made.returncode, made.stdout


def magic_system(rest, frame):
    run_shell(expand(rest, frame))


def magic_sx(rest, frame):
    return run_shell(expand(rest, frame), stdout=-1)[1].decode("utf-8", "replace").splitlines()


def cell_shell(program):
    def run(rest, body, name):
        import shlex
        import subprocess

        status, _ = run_shell(body, program, shlex.split(rest))
        if status:
            raise subprocess.CalledProcessError(status, program)
    return run


def magic_pip(rest, frame):
    import shlex

    words = shlex.split(expand(rest, frame), comments=True)
    if words[:1] != ["install"]:
        raise UsageError("a session only has %pip install PACKAGE...")
    packages, words = [], words[1:]
    while words:
        word = words.pop(0)
        if word in ("-q", "-qq", "--quiet", "-U", "--upgrade", "--user", "--no-input", "--disable-pip-version-check", "--no-cache-dir"):
            continue
        if word in ("-r", "--requirement") and words:
            with open(words.pop(0), encoding="utf-8") as file:
                lines = [line.partition("#")[0].strip() for line in file]
            packages += [line for line in lines if line]
        elif word.startswith("-"):
            raise UsageError("%%pip install does not have the option %s" % word)
        else:
            packages.append(word)
    if not packages:
        raise UsageError("%pip install needs the name of a package")
    answer = core.ask(b"install", json.dumps({"packages": packages}).encode(), (b"installed",))
    if answer is None or not answer[1]:
        raise InstallError("%s: not installed" % " ".join(packages))
    add_packages(os.fsdecode(answer[1]))


def add_packages(directory):
    """Makes a directory importable, in this interpreter and in those that it starts."""
    import importlib

    if directory not in sys.path:
        sys.path.insert(1 if sys.path[:1] == [""] else 0, directory)
        known = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = directory + (os.pathsep + known if known else "")
    importlib.invalidate_caches()


def magic_cd(rest, frame):
    os.chdir(os.path.expanduser(expand(rest, frame).strip("'\"") or "~"))
    print(os.getcwd())


def cell_writefile(rest, body, name):
    words = rest.split()
    append = words[:1] == ["-a"]
    with open(rest[2:].strip() if append else rest, "a" if append else "w", encoding="utf-8") as file:
        file.write(body)
    print("%s %s" % ("Appending to" if append else "Writing", file.name))


def magic_pinfo(rest, frame):
    found = describe(rest)
    print(found if found is not None else "Object `%s` not found." % rest)


LINES = {
    "time": magic_time, "time_await": magic_time_await, "timeit": magic_timeit, "pip": magic_pip, "system": magic_system, "sx": magic_sx,
    "cd": magic_cd, "pwd": lambda rest, frame: os.getcwd(), "pinfo": magic_pinfo,
}
CELLS = {
    "time": cell_time, "timeit": lambda rest, body, name: magic_timeit(rest, None, body), "bash": cell_shell("bash"), "sh": cell_shell("sh"),
    "writefile": cell_writefile,
}
core._shared.__line_magic__ = run_line_magic

# IPython, for its other magics and for code that imports it. Its import takes longer than the start of the driver.
ipython = None


def start_ipython():
    """Returns the shell of IPython, over the session's module and displays; None if it is not installed."""
    global ipython
    if ipython is None:
        try:
            from IPython.core.displayhook import DisplayHook
            from IPython.core.displaypub import DisplayPublisher
            from IPython.core.interactiveshell import InteractiveShell
            from traitlets.config import Config
        except ImportError:
            ipython = False
            return None

        class Publisher(DisplayPublisher):
            def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **_):
                send_display(dict(data), dict(metadata or {}), name=(transient or {}).get("display_id"), update=update)

            def clear_output(self, wait=False):
                pass

        class Results(DisplayHook):
            def __call__(self, result=None):
                core.show_result(result)

        config = Config()
        config.HistoryManager.enabled = False  # a database and a thread
        config.InteractiveShell.colors = "NoColor"
        ipython = InteractiveShell.instance(
            config=config, user_module=core.main, user_ns=namespace, display_pub_class=Publisher, displayhook_class=Results)
        for name in "exit", "quit":  # Python's own end the session
            if type(namespace.get(name)).__module__.startswith("IPython"):
                del namespace[name]
    return ipython or None


# Questions.
EMPTY = {
    b"check": {"status": "invalid"}, b"complete": {"matches": [], "start": 0, "end": 0}, b"inspect": {"found": False},
    b"variables": {"variables": [], "truncated": True}, b"packages": {},
}


def empty_reply(kind):
    """The reply to a question that was interrupted, or at which foreign code has failed."""
    return json.dumps(EMPTY[kind]).encode()


def answer(kind, argument, body):
    text = body.decode("utf-8", "replace")
    if kind == b"check":
        reply = check(text)
    elif kind == b"complete":
        reply = complete(body, int(argument or len(body)))
    elif kind == b"inspect":
        found = describe(text)
        reply = {"found": False} if found is None else {"found": True, "text": found}
    elif kind == b"variables":
        reply = list_variables()
    else:
        add_packages(os.fsdecode(body))
        reply = {}
    return json.dumps(reply).encode()


def check(text):
    """Is the text a complete cell, for an editor that asks at the end of each line?"""
    import warnings

    lines = text.split("\n")
    if text.startswith("%%"):
        return {"status": "complete"} if len(lines) > 1 and not lines[-1].strip() else {"status": "incomplete"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = core.parse(text, "<check>")
        except SyntaxError as e:
            try:
                tree, text = parse_magic(text, "<check>", e)
            except SyntaxError:
                if is_incomplete(text):
                    return {"status": "incomplete", "indent": next_indent(lines)}
                return {"status": "invalid"}
        except (ValueError, OverflowError, RecursionError, MemoryError):
            return {"status": "invalid"}
    if lines[-1].endswith("\\"):
        return {"status": "incomplete"}
    if tree.body and lines[-1].strip():
        last = tree.body[-1]
        if hasattr(last, "body") and last.end_lineno > last.lineno:  # an empty line ends a block
            return {"status": "incomplete", "indent": next_indent(lines)}
    return {"status": "complete"}


def is_incomplete(text):
    import codeop

    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= core.AWAIT | core.flags
    try:
        return compiler(text, "<check>", "exec") is None
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return False


def next_indent(lines):
    line = next((line for line in reversed(lines) if line.strip()), "")
    indent, code = line[:len(line) - len(line.lstrip())], line.partition("#")[0].rstrip()
    if code.endswith((":", "(", "[", "{")):
        return indent + "    "
    if re.match(r"\s*(return|pass|break|continue|raise)\b", line):
        return indent[:-4]
    return indent


class Unknown(Exception):
    """A name without a value, or with one that only foreign code can tell."""


def resolve(path):
    """Returns the value of a dotted name without calling foreign code: properties and __getattr__ are unknown."""
    first, *rest = path.split(".")
    if first in namespace:
        value = namespace[first]
    elif first in vars(core._shared):
        value = vars(core._shared)[first]
    else:
        raise Unknown(path)
    for name in rest:
        value = attribute_of(value, name)
    return value


def attribute_of(value, name):
    import inspect

    made = inspect.getattr_static(value, name, MISSING)
    if isinstance(made, (staticmethod, classmethod)):
        return made.__func__
    if isinstance(made, (types.MemberDescriptorType, types.GetSetDescriptorType)) and not isinstance(value, type):
        try:
            return made.__get__(value)
        except Exception:
            raise Unknown(name) from None
    if made is MISSING or isinstance(made, property):
        raise Unknown(name)
    return made


def complete(body, cursor):
    before = body[:cursor].decode("utf-8", "ignore")
    line = before.rpartition("\n")[2]
    try:
        start, matches = candidates(before, line)
    except Unknown:
        start, matches = len(before), []
    matches = sorted({m for m in matches if len(m) <= LIMIT_VALUE}, key=lambda m: (m.startswith("__"), m.startswith("_"), m))
    return {"matches": matches[:LIMIT_NAMES], "start": len(before[:start].encode("utf-8", "replace")), "end": len(before.encode("utf-8", "replace"))}


def candidates(before, line):
    """Returns where the word before the cursor begins, and what it may become."""
    if re.fullmatch(r"\s*%{1,2}\w*", line):
        word = line.lstrip()
        names = ["%%" + n for n in CELLS] if word.startswith("%%") else ["%" + n for n in LINES if n not in ("sx", "system", "pinfo", "time_await")]
        return len(before) - len(word), [n for n in names if n.startswith(word)]
    found = re.search(r"(?:^|;)\s*(?:from\s+|import\s+(?:[\w.]+(?:\s+as\s+\w+)?\s*,\s*)*)([\w.]*)$", line)
    if found:
        parent, dot, word = found.group(1).rpartition(".")
        return len(before) - len(word), [n for n in modules_in(parent) if n.startswith(word)]
    found = re.search(r"(?:^|;)\s*from\s+([\w.]+)\s+import\s+\(?(?:[\w\s]+,\s*)*(\w*)$", line)
    if found:
        module, word = sys.modules.get(found.group(1)), found.group(2)
        names = modules_in(found.group(1)) | {n for n in (vars(module) if module else ()) if isinstance(n, str)}
        return len(before) - len(word), hide_private(names, word)
    found = re.search(r"([^\W\d][\w.]*)\[\s*([\"'])([^\"'\[\]]*)$", line)
    if found:
        word = found.group(3)
        return len(before) - len(word), [k + found.group(2) + "]" for k in keys_of(resolve(found.group(1))) if k.startswith(word)]
    word = re.search(r"[\w.]*$", before).group()
    if "." in word:
        path, _, word = word.rpartition(".")
        return len(before) - len(word), hide_private({n for n in dir(resolve(path)) if isinstance(n, str)}, word)
    if word[:1].isdigit():
        return len(before), []
    import keyword

    names = {*namespace, *vars(core._shared), *keyword.kwlist}
    return len(before) - len(word), hide_private(names, word) + [n for n in parameters_before(before) if n.startswith(word)]


def hide_private(names, word):
    return [n for n in names if n.startswith(word) and (word or not n.startswith("_")) and n.isidentifier()]


def keys_of(value):
    if type(value) is dict:
        return [k for k in list(value) if type(k) is str]
    pandas = sys.modules.get("pandas")
    if pandas is not None and type(value) is getattr(pandas, "DataFrame", None):
        return [k for k in value.columns if type(k) is str]
    raise Unknown


def parameters_before(before):
    """The named parameters of the function whose call the cursor is in."""
    found = re.search(r"([^\W\d][\w.]*)\((?:[^()]*,)?\s*\w*$", before[-2000:])
    try:
        function = resolve(found.group(1)) if found else None
        if isinstance(function, type):
            function = attribute_of(function, "__init__")
    except Unknown:
        return []
    if not isinstance(function, types.FunctionType):
        return []
    code = function.__code__
    return [n + "=" for n in code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]]


def modules_in(parent):
    """The modules of a package, or the importable ones, without an import."""
    import importlib.machinery

    names, places = set(), sys.path
    if parent:
        module = sys.modules.get(parent)
        places = list(getattr(module, "__path__", ())) if module else [os.path.join(p, *parent.split(".")) for p in sys.path]
    else:
        names.update(sys.builtin_module_names, getattr(sys, "stdlib_module_names", ()))
    for place in places:
        try:
            entries = list(os.scandir(place or "."))
        except (OSError, TypeError, ValueError):
            continue
        for entry in entries:
            name, dot, rest = entry.name.partition(".")
            if "." + rest in importlib.machinery.all_suffixes() or not dot and entry.is_dir() and name != "__pycache__":
                names.add(name)
    return {n for n in names if n.isidentifier() and n != "__init__"}


def describe(text):
    """Describes what a name means; None without a value."""
    found = re.match(r"\s*\?*([^\W\d][\w.]*?)\.?\s*(?:[?(\[]|$)", text)
    if not found:
        return None
    path = found.group(1)
    try:
        value = resolve(path)
    except Unknown:
        return None
    import inspect

    lines, kind = [], type(value)
    if callable(value):
        try:
            lines.append("Signature: %s%s" % (path, inspect.signature(value)))
        except (ValueError, TypeError):
            pass
    lines.append("Type:      %s" % type_name(kind))
    if not callable(value):
        lines.append("Value:     %s" % short(value))
    try:
        lines.append("File:      %s" % inspect.getfile(value))
    except (TypeError, OSError):
        pass
    doc = inspect.getattr_static(value, "__doc__", None)
    if isinstance(doc, types.GetSetDescriptorType):
        doc = value.__doc__
    if not isinstance(doc, str) and isinstance(value, type(len)):
        doc = value.__doc__
    if isinstance(doc, str) and kind not in core.simple:
        lines += ["", inspect.cleandoc(doc[:LIMIT_INSPECTED])]
    if isinstance(value, (types.FunctionType, type)):
        try:
            source = inspect.getsourcelines(value)[0]
            lines += ["", "Source:", "".join(source[:40]).rstrip() + ("\n..." if len(source) > 40 else "")]
        except (OSError, TypeError, IndexError):
            pass
    return "\n".join(lines)[:LIMIT_INSPECTED]


def type_name(kind):
    name = type.__dict__["__qualname__"].__get__(kind)
    module = type.__dict__["__dict__"].__get__(kind).get("__module__")
    return name if module in ("builtins", "__main__") or not isinstance(module, str) else module + "." + name


def list_variables():
    hidden = getattr(ipython, "user_ns_hidden", {}) if ipython else {}
    names = sorted(n for n in list(namespace) if type(n) is str and not n.startswith("_") and n not in hidden and n != core.RESULT)
    shown = [{"name": n[:LIMIT_VALUE], "type": type_name(type(v))[:LIMIT_VALUE], "value": short(v)}
             for n in names[:LIMIT_NAMES] for v in (namespace.get(n),)]
    return {"variables": shown, "truncated": len(names) > LIMIT_NAMES}


def short(value, depth=2):
    """A short text of a value. It calls no foreign code, and reads a bounded part of the value."""
    kind = type(value)
    if kind is int and value.bit_length() > 600:
        return "<int of %d bits>" % value.bit_length()
    if kind in (int, float, complex, bool, type(None), type(Ellipsis), range):
        return repr(value)[:LIMIT_VALUE]
    if kind in (str, bytes, bytearray):
        text = repr(value[:LIMIT_VALUE])
        return text if len(text) <= LIMIT_VALUE and len(value) <= LIMIT_VALUE else "%s... (%d)" % (text[:LIMIT_VALUE - 20], len(value))
    if kind in BRACKETS:
        return short_items(value, *BRACKETS[kind], depth)
    if kind is types.ModuleType:
        return "<module %s>" % str(value.__dict__.get("__name__"))[:LIMIT_VALUE]
    if isinstance(value, type):
        return "<class %s>" % type_name(value)[:LIMIT_VALUE]
    if kind in (types.FunctionType, types.BuiltinFunctionType):
        return "<function %s>" % value.__name__[:LIMIT_VALUE]
    return short_table(value) or "<%s object>" % type_name(kind)[:LIMIT_VALUE]


BRACKETS = {list: "[]", tuple: "()", set: "{}", frozenset: ("frozenset({", "})"), dict: "{}"}


def short_items(value, left, right, depth):
    if depth == 0:
        return left + "..." + right if value else left + right
    parts, size, pairs = [], 0, type(value) is dict
    try:
        for item in value.items() if pairs else value:
            parts.append("%s: %s" % (short(item[0], 0), short(item[1], depth - 1)) if pairs else short(item, depth - 1))
            size += len(parts[-1]) + 2
            if size > LIMIT_VALUE:
                return left + ", ".join(parts)[:LIMIT_VALUE - 30] + "...%s (%d)" % (right, len(value))
    except RuntimeError:  # changed by a thread
        parts.append("...")
    if right == "}" and not pairs and not parts:
        return "set()"
    return left + ", ".join(parts) + ("," if kind_is_single(value) else "") + right


def kind_is_single(value):
    return type(value) is tuple and len(value) == 1


def short_table(value):
    """Shape and type of the usual arrays and tables; None for anything else."""
    kind = type(value)
    numpy, pandas = sys.modules.get("numpy"), sys.modules.get("pandas")
    if kind is getattr(numpy, "ndarray", MISSING):
        return "array of shape %s, %s" % (value.shape, value.dtype)
    if kind is getattr(pandas, "DataFrame", MISSING):
        return "%d rows, columns %s" % (len(value), short([c for c in list(value.columns[:50]) if type(c) in (str, int)]))
    if kind is getattr(pandas, "Series", MISSING):
        return "%d values, %s" % (len(value), value.dtype)
    return None


# Forks.
PIPES = {"stdout": posix.O_WRONLY, "stderr": posix.O_WRONLY, "to_driver": posix.O_RDONLY, "from_driver": posix.O_WRONLY}
ANSWERS = core.DESCRIPTOR - 3  # the descriptor of from_driver


def fork(number, body):
    """Makes a second interpreter with this one's state, which init adopts. It serves in place of this function's caller."""
    core.flush()
    reader, writer = posix.pipe()
    core.forking = True
    pid = 0
    try:
        child = os.fork()
        if child == 0:
            try:
                if os.fork():
                    core.exit_now(0)
                posix.close(reader)
                made, reader, writer = writer, -1, -1
                become_fork(os.fsdecode(body), made)
            except BaseException as e:
                posix.write(2, ("sandbox-run: fork: %r\n" % e).encode("utf-8", "replace"))
                core.exit_now(1)
            return
        posix.close(writer)
        writer = -1
        pid = int(posix.read(reader, 100) or 0)
        posix.waitpid(child, 0)
    except OSError:
        pass
    finally:
        core.forking = False
        for descriptor in reader, writer:
            if descriptor >= 0:
                posix.close(descriptor)
    core.waiting, core.pending = True, False
    core.send(b"reply", number, b'{"pid":%d}' % pid)


def become_fork(directory, made):
    posix.setsid()  # interrupts of the first interpreter are not this one's
    opened = {}
    for name, mode in PIPES.items():
        path = os.path.join(directory, name)
        # Open for reading and writing first: then no other open waits, in whatever order the session opens its ends.
        core.spare.append(posix.open(path, posix.O_RDWR | posix.O_CLOEXEC))
        opened[name] = posix.open(path, mode | posix.O_CLOEXEC)
    posix.write(made, b"%d" % os.getpid())  # not before: the session removes the pipes when it knows the process
    posix.close(made)
    for name, number in ("stdout", 1), ("stderr", 2):
        posix.dup2(opened[name], number)
        posix.dup2(opened[name], core.copies[number], inheritable=False)
    posix.dup2(opened["to_driver"], core.DESCRIPTOR, inheritable=False)
    posix.dup2(opened["from_driver"], ANSWERS, inheritable=False)
    for name in PIPES:
        posix.close(opened[name])
    core.source, core.target, core.owner = core.DESCRIPTOR, ANSWERS, os.getpid()
    core.connection = core.fstat(core.source).st_ino, core.fstat(core.target).st_ino
    core.buffer.clear()
    core.queue.clear()
    core.unsent.clear()
    core.sending, core.asking = core._thread.allocate_lock(), core._thread.allocate_lock()
    core.forking = False
    forget_processes()
    separate_loop()
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    core.send_ready()


def forget_processes():
    """What the first interpreter ends or deletes at its end is not this one's."""
    process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if process is not None:
        process._children = set()
    if util is not None:
        util._finalizer_registry.clear()
        util._run_after_forkers()
    weakref = sys.modules.get("weakref")
    for one in list(getattr(getattr(weakref, "finalize", None), "_registry", ())):
        one.atexit = False


def separate_loop():
    """Gives the event loop descriptors of its own: those of the first interpreter's loop are shared with that."""
    global loop
    if loop is None or loop.is_closed():
        return
    try:
        import selectors

        shared, own = {loop._ssock.fileno()}, selectors.DefaultSelector()
        for key in list(loop._selector.get_map().values()):
            if key.fd not in shared:
                own.register(key.fileobj, key.events, key.data)
        loop._selector.close()
        loop._selector = own
        loop._ssock.close()
        loop._csock.close()
        loop._internal_fds -= 1
        loop._make_self_pipe()
        loop._default_executor = None
    except Exception:
        loop = None  # of another make
