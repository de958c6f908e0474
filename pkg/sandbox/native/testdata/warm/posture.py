# Prints all there is to know about a process that does not change by itself: a cold start and a fork print the same.
import os, re, sys

modules = sorted(sys.modules)
finders = sorted(sys.path_importer_cache)
stdio = [(repr(f), f.line_buffering, f.write_through, f.errors, f.newlines, type(f.buffer).__name__, f.buffer.raw._blksize if hasattr(f.buffer, "raw") else f.buffer._blksize) for f in (sys.stdin, sys.stdout, sys.stderr)]


def section(name, *lines):
    print("[%s]" % name)
    for l in lines:
        print(l)


def read(path):
    with open(path, "rb") as f:
        return f.read()


section("sys", modules, finders, sys.path, sys.argv, getattr(sys, "orig_argv", None), sys.flags, sys.warnoptions, sys._xoptions, sys.executable, sys.prefix,
        [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path], [str(type(h)) + getattr(h, "__name__", "") for h in sys.path_hooks], sys.getrecursionlimit(), sys.getswitchinterval(),
        sys.getfilesystemencoding(), sys.dont_write_bytecode, sys.excepthook is sys.__excepthook__, sys.gettrace(), sys.getprofile(), sorted(k for k in vars(sys) if k != "exitfunc"))
section("stdio", *stdio, [os.isatty(n) for n in range(3)], [os.get_blocking(n) for n in range(3)])
section("main", sorted(globals()), __name__, __file__, __builtins__.__name__, __spec__, type(__loader__).__name__, sorted(vars(sys.modules["site"])), sorted(vars(__builtins__)))
section("environment", os.environ, read("/proc/self/environ"), os.getcwd(), read("/proc/self/cmdline"), read("/proc/self/comm"))

status = {}
for line in read("/proc/self/status").decode().splitlines():
    name, _, value = line.partition(":")
    status[name] = value.split()
for name in ("Pid", "Tgid", "NStgid", "NSpid", "NSpgid", "NSsid"):
    status[name] = "self" if status[name] == [str(os.getpid())] else status[name]
for name in list(status):
    if name.startswith(("Vm", "Rss", "voluntary", "nonvoluntary")) or name in ("FDSize", "HugetlbPages", "State"):
        del status[name]
status.pop("Seccomp_filters", None)  # a fork has its zygote's besides: TestZygotePosture
section("status", *("%s %s" % s for s in status.items()))
for name in ("limits", "uid_map", "gid_map", "setgroups", "oom_score_adj", "oom_score_adj", "timerslack_ns", "loginuid", "sessionid", "coredump_filter", "cgroup", "personality", "attr/current"):
    try:
        text = re.sub(r"\b(18|19|20|21)\d{8}\b", "ID", read("/proc/self/" + name).decode())
    except OSError as e:
        text = type(e).__name__
    section(name, text)
section("links", [os.readlink("/proc/self/" + l) for l in ("exe", "cwd", "root")])
section("namespaces", [(n, os.readlink("/proc/self/ns/" + n) == os.readlink("/proc/thread-self/ns/" + n)) for n in sorted(os.listdir("/proc/self/ns"))],
        [n for n in sorted(os.listdir("/proc/self/ns")) if n != "pid_for_children" and n.endswith("_for_children")])
fds = []
for n in sorted(map(int, os.listdir("/proc/self/fd"))):
    try:
        link = os.readlink("/proc/self/fd/%d" % n)
        info = read("/proc/self/fdinfo/%d" % n).split(b"\n")
    except OSError:
        continue
    fds.append((n, re.sub(r"\d+", "N", link), [i for i in info if i.startswith((b"flags", b"pos"))], oct(os.stat("/proc/self/fd/%d" % n).st_mode)))
section("descriptors", *fds)
mounts = []
for line in read("/proc/self/mountinfo").decode().splitlines():
    f = line.split()
    mounts.append(" ".join(f[3:6] + ["N" if x.startswith("/dev/loop") else x for x in f[7:]]))
section("mounts", *(re.sub(r"(size|nr_inodes|uid|gid)=\w+", r"\1", m) for m in mounts))
section("visible", sorted(p for p in os.listdir("/proc") if p.isdigit() and p not in ("1", str(os.getpid()))))
section("family", os.getppid(), os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid(), os.getresuid(), os.getresgid(), os.getgroups(), oct(os.umask(0)))
os.umask(0o022)
section("scheduling", os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0), os.sched_getparam(0))

import ctypes, resource, signal, gc, threading, locale, time, faulthandler, atexit  # noqa: E402

section("signals", [(s, signal.getsignal(s)) for s in sorted(signal.valid_signals())], signal.sigpending(), signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        [signal.getitimer(n) for n in range(3)], signal.set_wakeup_fd(-1))
section("rlimits", *(sorted((n, resource.getrlimit(getattr(resource, n))) for n in dir(resource) if n.startswith("RLIMIT_"))))
libc = ctypes.CDLL(None, use_errno=True)
number = ctypes.c_int(-1)
libc.prctl(2, ctypes.byref(number))
section("prctl", ("pdeathsig", number.value), *((n, libc.prctl(n, 0, 0, 0, 0)) for n in (3, 7, 21, 27, 30, 38, 39, 42)))
libc.prctl(37, ctypes.byref(number))
section("more", ("subreaper", number.value), [libc.prctl(23, n, 0, 0, 0) for n in range(41)], [libc.prctl(47, 1, n, 0, 0) for n in range(41)])
libc.syscall.restype = ctypes.c_long
section("ioprio", libc.syscall(252 if os.uname().machine == "x86_64" else 31, 1, 0))
where = []
for cpu in sorted(os.sched_getaffinity(0)):
    os.sched_setaffinity(0, {cpu})
    where.append((cpu, libc.sched_getcpu()))
section("processor", *where)
section("threads", [t.name for t in threading.enumerate()], threading.main_thread().ident == threading.get_ident(), threading.get_native_id() == os.getpid(), threading.stack_size())
section("state", gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.garbage, locale.setlocale(locale.LC_ALL), time.tzname, faulthandler.is_enabled())
section("interpreter", sys.getwindowsversion() if hasattr(sys, "getwindowsversion") else "", sys.hash_info, sys.thread_info, sys.implementation.cache_tag, len(sys._current_frames()))
environ = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
seen, n = [], 0
while environ[n]:
    seen.append(environ[n])
    n += 1
section("environ in C", sorted(seen))
