# The driver of warm Python. The interpreter imports it while it starts, before it looks at the program: there it waits, and
# with it the interpreter, until a request with a program arrives. What comes after is the interpreter's own doing: the driver takes back
# every trace of itself, and returns as the machine's own sitecustomize would.
#
# Two ways, as pkg/sandbox.Warm has them: started ahead, it reads one message from its standard input; forking, it waits
# at the socket that is its standard input, and forks for every request (see pkg/sandbox/internal/zygote).
#
# It uses what every interpreter has loaded by now, and _ctypes, which it hides again.


def _wait():
    import marshal
    import os
    import sys
    import time

    forking = "SANDBOX_RUN_FORK" in os.environ
    handshake = os.environ.get("SANDBOX_RUN_HANDSHAKE", "")
    preload = os.environ.get("SANDBOX_RUN_PRELOAD", "").split(",")
    watched = "SANDBOX_RUN_WATCHED" in os.environ  # the collector, by the program
    packages = os.environ.get("SANDBOX_RUN_PACKAGES", "")  # directory of a layer
    if "SANDBOX_RUN_PATHS" in os.environ:
        # What this interpreter is made of and imports from, for the supervisor to see whose it is: see pkg/sandbox/internal/zygote.
        import importlib.util
        import site

        found = {sys.executable, *sys.path, *sys.path_importer_cache, *(getattr(m, "__file__", None) for m in list(sys.modules.values()))}
        for name in preload:
            spec = importlib.util.find_spec(name.partition(".")[0]) if name else None
            if spec is not None:
                found.update((spec.origin, *(spec.submodule_search_locations or ())))
        if sys.flags.no_site:  # what would be imported from: .pth files are read, and not obeyed
            home, version = os.path.dirname(os.path.dirname(sys.executable)), "python%d.%d" % sys.version_info[:2]
            own = [os.path.join(home, lib, version, "site-packages") for lib in ("lib", "lib64")]  # of a virtual environment
            for place in own + site.getsitepackages([sys.prefix, sys.exec_prefix]):
                found.add(place)
                for name in os.listdir(place) if os.path.isdir(place) else ():
                    if name.endswith(".pth"):
                        with open(os.path.join(place, name), "rb") as f:
                            lines = [os.fsdecode(line.strip()) for line in f.read().split(b"\n")]
                        found.update(os.path.join(place, line) for line in lines if line and not line.startswith(("#", "import ", "import\t", "\0")))
        with open("/proc/self/maps", "rb") as f:
            found.update(os.fsdecode(line[line.index(b"/"):-1]) for line in f if b"/" in line)
        os.write(1, b"\0" + b"".join(os.fsencode(p) + b"\0" for p in found if p and p != "built-in" and p != "frozen"))
        os._exit(0)
    for name in [n for n in os.environ if n == "PYTHONPATH" or n.startswith("SANDBOX_RUN_")]:
        del os.environ[name]

    for stream in sys.stdout, sys.stderr:  # as line_buffering.py does for a cold start
        if not stream.write_through:
            stream.reconfigure(line_buffering=True)

    # The driver goes, and what a cold start would import under this name comes in its place.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != here]
    sys.path_importer_cache.pop(here, None)
    del sys.modules["sitecustomize"]
    outcome = None
    try:
        import sitecustomize  # noqa: F401  the machine's own
    except BaseException as e:
        outcome = e.with_traceback(None)
        outcome.__context__ = None

    def borrow(*names):
        """Imports modules that a cold start has not, without a trace."""
        modules, finders = set(sys.modules), set(sys.path_importer_cache)
        found = [__import__(name) for name in names]
        for name in set(sys.modules) - modules:
            del sys.modules[name]
        for path in set(sys.path_importer_cache) - finders:
            del sys.path_importer_cache[path]
        return found

    (faulthandler,) = borrow("faulthandler")  # as in line_buffering.py
    faulthandler.register(16, 2, True)
    (_ctypes,) = borrow("_ctypes")
    little = sys.byteorder

    class c_long(_ctypes._SimpleCData):
        _type_ = "l"

    class c_char(_ctypes._SimpleCData):
        _type_ = "c"

    class py_object(_ctypes._SimpleCData):
        _type_ = "O"

    class Function(_ctypes.CFuncPtr):
        _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
        _restype_ = c_long

    class Held(_ctypes.CFuncPtr):
        """A function that is called with the interpreter's lock."""
        _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_PYTHONAPI
        _restype_ = None

    class Object(_ctypes.CFuncPtr):
        _flags_ = Held._flags_
        _argtypes_ = (py_object,)
        _restype_ = None

    program = _ctypes.dlopen(None, 0)

    def function(name, arguments):
        f = Function(_ctypes.dlsym(program, name))
        f.argtypes = (c_long,) * arguments
        return f

    syscall, prctl, setns, recv, recvmsg, sendmsg, mmap, memcpy, sbrk = (function(*f) for f in (
        ("syscall", 7), ("prctl", 5), ("setns", 2), ("recv", 4), ("recvmsg", 3), ("sendmsg", 3), ("mmap", 6), ("memcpy", 3), ("sbrk", 1)))

    def address(data):
        """Where the bytes of a bytearray lie, which must not be empty."""
        return _ctypes.addressof(c_char.from_buffer(data))

    def pack(*numbers):
        return b"".join(n.to_bytes(8, little, signed=n < 0) for n in numbers)

    def message(data, rights):
        """A struct msghdr, and what it points to."""
        vector = bytearray(pack(address(data), len(data)))
        return bytearray(pack(0, 0, address(vector), 1, address(rights) if rights else 0, len(rights), 0)), vector

    def send(fd, data, right=-1):
        rights = bytearray()
        if right >= 0:
            rights = bytearray(pack(20) + (1).to_bytes(4, little) + (1).to_bytes(4, little) + right.to_bytes(4, little) + bytes(4))
        data = bytearray(data)
        header, vector = message(data, rights)
        return sendmsg(fd, address(header), 0x4000) >= 0  # MSG_NOSIGNAL

    class Failed(Exception):
        pass

    def fail(stage, number, detail):
        raise Failed(b"failed %s %d %s" % (stage, number, detail.encode("utf-8", "replace")[:500]))

    def run(calls, fds):
        result = 0
        for stage, harmless, number, *arguments in calls:
            held, raw = [], []
            for a in arguments:
                if isinstance(a, bytes):
                    held.append(bytearray(a))
                    a = address(held[-1])
                elif isinstance(a, tuple):
                    a = fds[a[0]] if a else result
                raw.append(a)
            result = syscall(number, *raw, *(0,) * (6 - len(raw)))
            if result < 0 and _ctypes.get_errno() not in harmless:
                fail(stage, _ctypes.get_errno(), "system call %d" % number)

    def make(number, *arguments):
        """A system call by itself: its result, or its errno as a negative number."""
        held = [bytearray(a) if isinstance(a, bytes) else a for a in arguments]
        result = syscall(number, *(address(a) if isinstance(a, bytearray) else a for a in held), *(0,) * (6 - len(held)))
        return result if result >= 0 else -_ctypes.get_errno()

    # Where the kernel says that the parts of this process are: it is asked to change two of them.
    try:
        with open("/proc/self/stat", "rb") as f:
            fields = f.read().rpartition(b") ")[2].split()
        layout = [int(fields[n]) for n in (23, 24, 42, 43, 44)]  # code, data, heap
        stack = int(fields[25])
        with open("/proc/self/cmdline", "rb") as f:
            command = f.read().split(b"\0")[:-1]
    except (OSError, IndexError, ValueError):
        layout, command = None, []

    def show(args, env):
        """What /proc shows of a process are the arguments and variables it was executed with. (Where the kernel can not be told
        others, it goes on to show the driver's.)"""
        if layout is None:
            return
        first, second = (b"".join(s + b"\0" for s in l) for l in (args, env))
        size = len(first) + len(second) + 1
        at = mmap(0, size, 3, 0x22, -1, 0)  # private, anonymous, to be read and written
        if at in (-1, 0):
            return
        text = bytearray(first + second + b"\0")
        memcpy(at, address(text), size)
        heap = sbrk(0)
        where = bytearray(pack(layout[0], layout[1], layout[2], layout[3], layout[4], heap, stack,
                            at, at + len(first), at + len(first), at + len(first) + len(second), 0) + bytes(4) + b"\xff" * 4)
        prctl(35, 14, address(where), len(where), 0)  # PR_SET_MM, PR_SET_MM_MAP

    def appear(args, env):
        """Arguments and environment, as bytes; here and in C, and what /proc shows of them."""
        show(args, env)
        text = [os.fsdecode(a) for a in args]
        sys.argv[:] = text[1:]
        if hasattr(sys, "orig_argv"):  # since 3.10
            sys.orig_argv[:] = text
        os.environ.clear()
        for variable in env:
            name, _, value = variable.partition(b"=")
            if variable != hook:
                os.environ[os.fsdecode(name)] = os.fsdecode(value)

    # Most programs are given what everybody is given: then they have it. The hook of a cold start removes its own variable, too.
    hook = b"PYTHONPATH=" + os.fsencode(here)
    usual = tuple(command), tuple(sorted([hook] + [n + b"=" + v for n, v in os.environb.items()]))
    if command:
        appear(*usual)

    def become(args, env):
        """The process has these arguments and this environment now, and what an interpreter makes of them when it starts."""
        import site

        if (args, env) != usual:
            appear(args, env)
        # What lies beside the program is imported in place of what has the same name elsewhere, unless that is loaded.
        if loaded:
            for entry in os.listdir(os.path.dirname(args[1]) or b"."):
                if os.fsdecode(entry).partition(".")[0] in loaded:
                    fail(b"site", 0, "the program has a module of its own: %r" % entry)
        # Python looks for a user's own packages when it starts; the zygote has looked elsewhere. Those of a layer are added at the end.
        if site.ENABLE_USER_SITE and os.path.isdir(site.USER_SITE) != (site.USER_SITE in sys.path):
            if not packages or os.listdir(site.USER_SITE) != ["sandbox-run.pth"]:
                fail(b"site", 0, "the user has packages of their own")
            if any(entry.partition(".")[0] == "sitecustomize" for entry in os.listdir(packages)):
                fail(b"site", 0, "the layer has a module that Python imports when it starts")
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()
        # It knows the main thread by the number that it had where it was loaded (until 3.13).
        if "threading" in sys.modules:
            sys.modules["threading"].main_thread()._set_native_id()
        # Records tell how long the program has run.
        if "logging" in sys.modules:
            clock = time.time_ns if isinstance(sys.modules["logging"]._startTime, int) else time.time  # since 3.13
            sys.modules["logging"]._startTime = clock()
        # It makes these when it is loaded, and remembers where they are.
        if "matplotlib" in sys.modules:
            for place in ("get_configdir", "get_cachedir"):
                os.makedirs(getattr(sys.modules["matplotlib"], place)(), exist_ok=True)

    loaded = set()  # that a cold start has not

    def load():
        before = set(sys.modules)
        for name in preload:
            if name:
                try:
                    __import__(name)
                except ModuleNotFoundError as e:
                    if e.name != name.partition(".")[0]:
                        raise  # half of it is loaded: this interpreter is not usable
        loaded.update(name for name in set(sys.modules) - before if "." not in name)
        if not forking:
            return
        with open("/proc/self/maps", "rb") as f:
            for line in f:
                if b"w" in line[:40].split()[1] and b"s" in line[:40].split()[1]:
                    raise SystemError("memory that forks would share: %r" % line)

    def receive(fd):
        """One message, and the descriptors that come with it; nothing at the end."""
        size = recv(fd, 0, 0, 0x22)  # MSG_PEEK | MSG_TRUNC
        if size <= 0:
            return b"", []
        data, rights = bytearray(size), bytearray(1024)
        header, vector = message(data, rights)
        if recvmsg(fd, address(header), 0x40000000) != size:  # MSG_CMSG_CLOEXEC
            return b"", []
        length = int.from_bytes(rights[:8], little)
        return data, [int.from_bytes(rights[n:n + 4], little) for n in range(16, length, 4)]

    def last():
        """Sees to it that the shortcut is asked when all others have been, those of the modules that are loaded here included. Returns the list
        that it is to be put into, or None."""
        if sys.version_info < (3, 10):
            return None  # there, atexit is forgotten with its module, and who imports that anew has another
        (atexit,) = borrow("atexit")
        ends, earlier = [], []

        class Anybody:
            def __eq__(self, other):
                earlier.append((getattr(other, "__module__", None), getattr(other, "__name__", None)))
                return False

        # What the machine's own start has registered would come after it, and never.
        atexit.unregister(Anybody())
        if set(earlier) - {("certifi.core", "exit_cacert_ctx")}:  # which does nothing where its file is one
            return None

        def end():
            for f in ends:
                f()

        atexit.register(end)
        return ends

    def shortcut(gc, ends):
        """An interpreter that ends takes all it has apart, object by object, and a fork first copies every page of that. Where no program can tell,
        a program's last line is the end: the process exits as it would have, once streams are flushed. Whatever is not known for certain
        ends as ever. Returns what has to be called before requests are served, which returns true in a process that is to run its program."""
        if ends is None or layout is None:
            return lambda: False
        try:
            getcontext, leave = function("getcontext", 1), function("exit", 1)
            place = {"x86_64": 160, "aarch64": 432}[os.uname().machine]  # of the stack pointer in what getcontext writes
        except (OSError, AttributeError, KeyError):
            return lambda: False
        weakref, io, warnings = borrow("_weakref", "_io", "_warnings")
        kinds, names, callback = type.__dict__["__mro__"], type.__dict__["__dict__"], weakref.ref.__dict__["__callback__"]
        modules, stdout, stderr, hook, filters = sys.modules, sys.stdout, sys.stderr, sys.excepthook, list(warnings.filters)
        streams = [(s, set(s.__dict__)) for s in (sys.stdin, stdout, stderr) if s is not None]
        builtin, written, module, specified, slot = type(len), type(borrow), type(sys), type(sys.__spec__), object.__init__
        sources = "SourceFileLoader SourcelessFileLoader NamespaceLoader _NamespaceLoader FrozenImporter".split()
        # Parts of the library that are not written in Python, whose objects do nothing when they go.
        plain = set("""_abc _ast _asyncio _bisect _blake2 _bz2 _collections _contextvars _csv _datetime _decimal _elementtree _functools _hashlib _heapq _json
            _locale _lsprof _lzma _md5 _opcode _operator _pickle _posixsubprocess _queue _random _sha1 _sha2 _sha256 _sha3 _sha512 _signal _socket _sre
            _ssl _stat _statistics _string _struct _symtable _thread _tokenize _typing _uuid _weakref _zoneinfo array atexit binascii cmath errno fcntl
            grp itertools math mmap pwd pyexpat resource select termios time unicodedata zlib""".split())
        context, attempts, straight, codes = bytearray(8192), [], [], []

        def quiet(kind):
            """Whether objects of a type do nothing when they go, as far as a type tells."""
            for k in kinds.__get__(kind):
                own = names.__get__(k)
                if "__del__" in own or type(own.get("__release_buffer__", slot)) is not type(slot):  # the latter since 3.12, in C too
                    return False
            return True

        # Of these, an object has to be asked.
        def library(o):
            spec = o.__dict__.get("__spec__")
            if type(spec) is not specified:
                return spec is None
            loader = spec.loader if type(spec.loader) is type else type(spec.loader)
            return spec.name in plain or loader.__name__ in sources

        def memory(o):
            return not o.__dict__  # it has no close of its own

        def proxy(o):
            return not gc.get_referents(o)  # its callback, which it does not tell

        def reference(o):
            call = callback.__get__(o)
            if type(call) is builtin:
                return call.__name__ in ("_destroy", "_localdummy_destroyed")  # of _abc and _thread
            if type(call) is written:
                own = modules.get(call.__module__) if call.__module__ in ("weakref", "_weakrefset", "logging") else None
                return type(own) is module and call.__globals__ is own.__dict__ and call.__name__ != "_cb"  # which calls another
            return call is None

        def silent():
            """Whether the program ended well, and left nothing that would do anything."""
            if "last_type" in sys.__dict__ or type(modules["__main__"].__dict__["__loader__"]).__name__ != "SourceFileLoader":
                return False  # an exception, or no program
            if sys.stdout is not stdout or sys.stderr is not stderr or sys.excepthook is not hook or warnings.filters != filters:
                return False
            if modules.get("warnings", warnings).filters != filters or any(set(s.__dict__) != had for s, had in streams):
                return False
            if len(sys._current_frames()) > 1 or sys.getallocatedblocks() > blocks + 50000:  # it would take long to look
                return False
            known = {id(module): library, id(io.StringIO): memory, id(io.BytesIO): memory,
                     id(weakref.ProxyType): proxy, id(weakref.CallableProxyType): proxy}
            for o in gc.get_objects():
                kind = type(o)
                look = known.get(id(kind), quiet)
                if look is quiet:
                    if not quiet(kind):
                        return False
                    look = known[id(kind)] = reference if any(k is weakref.ref for k in kinds.__get__(kind)) else None
                if look is not None and not look(o):
                    return False
            return True

        def end():
            try:
                getcontext(address(context))
                depth = int.from_bytes(context[place:place + 8], little)
                below = bytearray(stack - depth)
                memcpy(address(below), depth, len(below))
                if attempts:
                    os.write(attempts[0], pack(depth) + below)
                    os._exit(0)
                # It may be called from anywhere. Only where Python ends after the last line, and has noted no other, the exit code is 0.
                if straight == [depth] and not any(any(below[n:n + 4]) for n in codes) and silent():
                    for stream in stdout, stderr:
                        if not stream.closed:
                            stream.flush()
                    leave(0)
            except BaseException:
                pass

        def attempt(source):
            """How deep the stack is when this program has ended, and what is on it; None in the process that is to run it."""
            with open(sys.argv[0], "xb") as f:
                f.write(source)
            reads, writes = os.pipe()
            child = os.fork()
            if child == 0:
                attempts.append(writes)
                return None
            os.close(writes)
            with open(reads, "rb") as f:
                depth, below = int.from_bytes(f.read(8), little), f.read()
            os.waitpid(child, 0)
            os.unlink(sys.argv[0])
            return depth, below

        def learn():
            """How Python ends after a last line and nowhere else, and where it has noted its exit code by then: what is 0 after programs that
            end well, and 1 after those that do not."""
            caught = b"import threading\n\n\ndef f(n):\n    return [f(n - 1)] if n else n()\n\n\ntry:\n    f(20)\nexcept TypeError:\n    pass\n"
            unseen = b"import sys\n\nsys.excepthook = lambda *_: None\n"
            seen = []
            try:
                for source in b"", caught, b"raise SystemExit", unseen + b"raise KeyError\n", unseen + caught + b"f(2)\n":
                    what = attempt(source)
                    if what is None:
                        return True
                    seen.append(what)
            except OSError:
                return False
            (ends, _), _, (exits, _), _, _ = seen
            if ends and ends == seen[1][0] != exits:
                zero, one = bytes(4), (1).to_bytes(4, little)
                well, ill = [below for _, below in seen[:2]], [below for depth, below in seen[3:] if depth == ends]
                if ill:
                    codes.extend(n for n in range(0, stack - ends, 4) if all(b[n:n + 4] == zero for b in well) and all(b[n:n + 4] == one for b in ill))
                if codes or not ill:
                    straight.append(ends)
            return False

        before = {id(type(o)): type(o) for o in gc.get_objects()}.values()
        if outcome is not None and getattr(outcome, "name", "") != "sitecustomize" or not all(quiet(k) or k.__module__ == "_io" or k.__name__ == "generator" for k in before):
            return lambda: False
        ends.append(end)
        blocks = sys.getallocatedblocks()
        return learn

    def twice():
        """Forks a process whose parent exits at once, so that the init of its namespace adopts it. True in that process, false in this one."""
        child = os.fork()
        if child == 0:
            try:
                if os.fork() == 0:
                    return True
            except OSError:
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            raise OSError(11, "fork")  # EAGAIN
        return False

    def restartable():
        """The call by which C has told the kernel where it keeps its restartable sequences (rseq), since glibc 2.35; () if it has not. One that
        borrows another's memory has none, nor have its forks: until they call again, C takes them to be on the processor that this one was on."""
        def value(name, size):
            data = bytearray(size)
            memcpy(address(data), _ctypes.dlsym(program, name), size)
            return int.from_bytes(data, little, signed=True)

        try:
            size, offset = value("__rseq_size", 4), value("__rseq_offset", 8)
        except (OSError, AttributeError):
            return ()
        if size == 0:
            return ()
        number, mark, above = {"x86_64": (334, 0x53053053, False), "aarch64": (293, 0xd428bc00, True)}[os.uname().machine]
        at = function("pthread_self", 0)() + offset
        if above:  # what C knows of a thread lies below what it counts from
            at += value("_thread_db_sizeof_pthread", 4)
        for length in 32, -(-size // 32) * 32:
            call = number, at, length, 0, mark, 0, 0
            if syscall(*call) == -1 and _ctypes.get_errno() == 16:  # EBUSY: it is just this that the kernel was told
                return call
        raise OSError(38, "rseq")

    def orphan():
        """The same, for half the price: the process between borrows this one's memory instead of copying it, as vfork has it, and has nothing of
        Python to do. C's own functions are strung together for it, by contexts, each of which is gone on to when a function returns:

            begin: clone ─► between: raise ─► daemon, which forks and exits ─► in the new process: main, as if nothing had been
                      └─► here, once the process between has ended: main

        Should daemon not be able to fork, main must not be gone on to by the one between: on the way there, a signal is let through that only
        that has waiting, for a fork has none. Without C's contexts, or where a trial does not go well, it is fork, twice."""
        try:
            offset = {"x86_64": 296, "aarch64": 40}[os.uname().machine]  # of the signals that are held back
            places = {name: _ctypes.dlsym(program, name) for name in ("clone", "setcontext", "raise", "daemon")}
            getcontext, makecontext, swapcontext, before, parent, child = (Held(_ctypes.dlsym(program, name)) for name in (
                "getcontext", "makecontext", "swapcontext", "PyOS_BeforeFork", "PyOS_AfterFork_Parent", "PyOS_AfterFork_Child"))
        except (OSError, AttributeError, KeyError):
            return twice
        for f, arguments in (getcontext, 1), (makecontext, 10), (swapcontext, 2), (before, 0), (parent, 0), (child, 0):
            f.argtypes = (c_long,) * arguments
        try:
            sequences = restartable()
        except (OSError, AttributeError, KeyError):
            return twice
        main, between, contexts, stacks = bytearray(8192), bytearray(16), [bytearray(8192) for _ in range(3)], [bytearray(65536) for _ in range(4)]
        ended = 15  # SIGTERM

        def context(n, then, held, name, *arguments):
            at = address(contexts[n])
            getcontext(at)
            contexts[n][8:40] = pack(then, address(stacks[n]), 0, len(stacks[n]))
            contexts[n][offset:offset + 8] = pack(held)
            makecontext(at, places[name], len(arguments), *arguments, *(0,) * (7 - len(arguments)))
            return at

        def once():
            held = 1 << ended - 1
            forks = context(0, address(main), held, "daemon", 1, 1)
            signals = context(1, forks, held, "raise", ended)
            between[:] = pack(0, 1)
            at = address(between)
            # CLONE_VM, VFORK, PARENT_SETTID: its number; CHILD_CLEARTID: 1 until it has ended, and so for ever in the new process
            begin = context(2, address(main), 0, "clone", places["setcontext"], address(stacks[3]) + len(stacks[3]), 0x304111, signals, at, 0, at + 8)
            before()
            swapcontext(address(main), begin)
            number, new = (int.from_bytes(between[n:n + 4], little) for n in (0, 8))
            if number and new:
                if sequences:
                    syscall(*sequences)
                child()
                return True
            parent()
            if not number or os.waitpid(number, 0)[1] != 0:
                raise OSError(11, "clone")
            return False

        trial = os.fork()
        if trial == 0:
            try:
                if prctl(36, 1, 0, 0, 0) == 0 and once():  # PR_SET_CHILD_SUBREAPER
                    os._exit(ended if os.getsid(0) == os.getpid() and restartable() == sequences else 2)
                if os.waitpid(-1, 0)[1] == ended << 8:
                    os._exit(0)
            finally:
                os._exit(3)
        well = os.waitpid(trial, 0)[1] == 0
        return once if well and len(os.listdir("/proc/self/task")) == 1 else twice

    def serve():
        """Returns in the program's own process, and nowhere else. Of what is asked for, this process sees which namespaces it is for; the
        rest is read by the program's own."""
        own = os.open("/proc/self/ns/pid", os.O_RDONLY)
        fork = orphan()
        if not watched:
            # A program that ends has the collector look at every object four times, and so copy every page. What lives as long as the
            # interpreter need not be looked at: all but the program's own names, which it holds its objects by.
            (gc,) = borrow("gc")
            learn = shortcut(gc, ends)
            names = sys.modules["__main__"]
            untrack, track = (Object(_ctypes.dlsym(program, f)) for f in ("PyObject_GC_UnTrack", "PyObject_GC_Track"))
            held = [o for o in (names, names.__dict__) if gc.is_tracked(o)]
            for o in held:
                untrack(o)
            gc.freeze()
            for o in held:
                track(o)
            gc.collect(0)  # they are older than what the program makes
            if learn():
                return
        if not send(0, b"ready"):
            os._exit(3)
        while True:
            kind, fds = receive(0)
            if not kind:
                os._exit(0)
            answers, pids, users, init = fds
            if setns(pids, 0x20000000) < 0:  # CLONE_NEWPID: of children
                send(answers, b"failed namespaces %d join" % _ctypes.get_errno())
            else:
                try:
                    if fork():
                        break
                except OSError as e:
                    send(answers, b"failed fork %d fork" % e.errno)
            for fd in fds:
                os.close(fd)
            if setns(own, 0x20000000) < 0:
                os._exit(4)
        try:
            for fd in range(3):  # the zygote's: the readers of the other ends have to see the end of the zygote, however long this process waits
                os.dup2(answers, fd)
            # The user namespace first: it gives the right to the others, of mounts, network, IPC and names.
            if setns(users, 0x10000000) < 0 or setns(init, 0x4C020000) < 0:
                fail(b"namespaces", _ctypes.get_errno(), "join")
            data, fds = receive(answers)
            if not data:
                os._exit(0)
            run(marshal.loads(data), fds)
            # Whose child we are is for everybody to see, and for the init to know.
            patience = time.monotonic() + 10
            while os.getppid() != 1:
                if time.monotonic() > patience:
                    fail(b"fork", 0, "the init has not adopted the process")
                time.sleep(0.0001)
            if not send(answers, b"waits"):
                os._exit(0)
            data, fds = receive(answers)
            if not data:
                os._exit(0)
            walls, filters, probes, closing, args, env = marshal.loads(data)
            run(walls, fds)
            become(args, env)
            tried = make(*probes[0]) if probes and probes[0] else 0
            listener = -1
            for number, operation, flags, code, listens in filters:
                code = bytearray(code)
                put = bytearray(pack(len(code) // 8, address(code)))
                result = syscall(number, operation, flags, address(put), 0, 0, 0)
                if result >= 0:
                    listener = result if listens else -1
                    break
            else:
                if filters:
                    fail(b"seccomp", _ctypes.get_errno(), "install filter")
            # Without a listener: EPERM is this filter's, not that of the interpreter that was forked (ENOSYS) nor the kernel's (EBADF).
            if probes and listener < 0 and not (probes[3] and make(*probes[3]) == -1):
                fail(b"probe", 0, "seccomp: the filter is not in force, or has no listener")
            began = b"began %d %d" % (os.getpid(), time.monotonic_ns())
        except BaseException as e:
            if not isinstance(e, Failed):
                e = Failed(b"failed driver 0 " + repr(e).encode("utf-8", "replace")[:500])
            send(answers, e.args[0])
            os._exit(0)
        if not send(answers, began, listener):
            os._exit(1)
        # The supervisor, which has the listener, measures this process now, and answers when it may go on.
        if probes and listener >= 0 and make(*probes[1], -tried) != probes[2]:
            os._exit(1)
        run(closing, fds)

    def read(size):
        data = b""
        while len(data) < size:
            piece = os.read(0, size - len(data))
            if not piece:
                os._exit(0)
            data += piece
        return data

    def told():
        """Waits for one message at standard input, of which not a byte more is read."""
        (_json,) = borrow("_json")
        os.unlink(__file__)
        os.rmdir(here)

        class Context:
            strict, object_hook, object_pairs_hook = True, None, None
            parse_float, parse_int, parse_constant, memo = float, int, None, {}

        os.write(2, handshake.encode())
        text = read(int.from_bytes(read(4), "big")).decode("utf-8")
        what, _ = _json.make_scanner(Context)(text, 0)
        become(tuple(os.fsencode(a) for a in what["args"]), tuple(sorted(os.fsencode(n + "=" + v) for n, v in what["env"].items())))
        os.chdir(what["dir"])

    ends = last() if forking and not watched else None
    collect = borrow("gc")[0].collect if watched else None
    load()
    if forking:
        serve()
    else:
        told()
    return outcome, collect, bool(packages)


def _add_packages():
    """Looks for the user's own packages where Python looks for them when it starts: before those of the machine."""
    import os
    import site
    import sys

    if not site.ENABLE_USER_SITE or not os.path.isdir(site.USER_SITE):
        return
    machine = site.getsitepackages()
    at = next((n for n, path in enumerate(sys.path) if path in machine), len(sys.path))
    later = sys.path[at:]
    del sys.path[at:]
    site.addsitedir(site.USER_SITE)
    sys.path.extend(path for path in later if path not in sys.path)


_outcome, _collect, _packages = _wait()
del _wait
if _collect is not None:
    # The driver's own types refer to themselves: the collector frees them in several turns, which a program that watches it would count.
    for _ in range(9):
        if _collect() == 0:
            break
if _packages:
    _add_packages()
if _outcome is not None:
    raise _outcome
