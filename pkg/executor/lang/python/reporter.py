# Runs the tests of a project with unittest or pytest, and reports each as a line of JSON on descriptor 3. tests.json, beside this file,
# says which tests are to be run. The arguments are those of the framework.
import json, os, signal, sys, time, traceback

# Further processes of the tests do not have the descriptor.
report = os.dup(3)
os.close(3)
own = os.getpid()
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "tests.json")) as f:
    asked = json.load(f)
framework, filter_, names, limit = asked["framework"], asked["filter"], asked["names"], asked["timeout"]
sys.path[0] = os.getcwd()  # as with python -m

MOST = 32 << 10


def cut(text):
    text = str(text)
    return text if len(text) <= 2 * MOST else text[:MOST] + "\n…\n" + text[-MOST:]


def send(kind, **fields):
    if os.getpid() != own:
        return  # a test has forked, and its child runs on
    rest = memoryview((json.dumps(dict(fields, type=kind)) + "\n").encode("ascii"))
    while rest:
        rest = rest[os.write(report, rest):]


def relative(path):
    path = os.path.abspath(path)
    here = os.getcwd() + os.sep
    return path[len(here):] if path.startswith(here) else path


class TestTimeout(Exception):
    pass


def ring(*_):
    raise TestTimeout("the test took longer than %g s" % limit)


def start_clock():
    if limit:
        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, limit)


def stop_clock():
    if limit:
        signal.setitimer(signal.ITIMER_REAL, 0)


def run_unittest(args):
    import inspect, io, unittest

    class Tee:
        """Passes on what is printed, and keeps it for the report."""

        def __init__(self, to):
            self.to, self.kept = to, io.StringIO()

        def write(self, text):
            if self.kept.tell() < 2 * MOST:
                self.kept.write(text[:2 * MOST])
            return self.to.write(text)

        def __getattr__(self, name):
            return getattr(self.to, name)

    class Result(unittest.TestResult):
        def startTest(self, test):
            super().startTest(test)
            self.status, self.said, self.began = "passed", [], time.monotonic()
            send("start", id=test.id(), **place(test))
            self.streams = sys.stdout, sys.stderr
            self.tees = sys.stdout, sys.stderr = Tee(sys.stdout), Tee(sys.stderr)
            start_clock()

        def stopTest(self, test):
            stop_clock()
            took = time.monotonic() - self.began
            out = "".join(t.kept.getvalue() for t in self.tees)
            sys.stdout, sys.stderr = self.streams
            send("end", id=test.id(), status=self.status, duration=took, message=cut("\n".join(self.said)), output=out, **place(test))
            self.status = None
            super().stopTest(test)

        status = None

        def note(self, test, status, text):
            if self.status is None:  # a fixture of a class or module, which is no test
                send("end", id=test.id(), name=test.id(), status=status, message=cut(text))
            else:
                if self.status in ("passed", "skipped") or status == "timeout":
                    self.status = status
                self.said.append(text)

        def failed(self, test, status, err):
            if issubclass(err[0], TestTimeout):
                status = "timeout"
            self.note(test, status, self._exc_info_to_string(err, test))

        def addFailure(self, test, err):
            super().addFailure(test, err)
            self.failed(test, "failed", err)

        def addError(self, test, err):
            super().addError(test, err)
            self.failed(test, "error", err)

        def addSubTest(self, test, subtest, err):
            super().addSubTest(test, subtest, err)
            if err is not None:
                stop = issubclass(err[0], test.failureException)
                self.said.append(str(subtest))
                self.failed(test, "failed" if stop else "error", err)

        def addSkip(self, test, reason):
            super().addSkip(test, reason)
            self.note(test, "skipped", reason)

        def addUnexpectedSuccess(self, test):
            super().addUnexpectedSuccess(test)
            self.note(test, "failed", "the test was expected to fail, and passed")

    def place(test):
        method = getattr(test, "_testMethodName", "")
        suite = "%s.%s" % (type(test).__module__, type(test).__qualname__)
        if type(test).__name__ == "_FailedTest":
            return dict(name=method, suite="")
        try:
            code = inspect.unwrap(getattr(type(test), method)).__code__
            return dict(name=method, suite=suite, file=relative(code.co_filename), line=code.co_firstlineno)
        except AttributeError:
            return dict(name=method or test.id(), suite=suite)

    def flat(suite):
        for t in suite:
            if isinstance(t, unittest.TestSuite):
                yield from flat(t)
            else:
                yield t

    class Runner:
        def run(self, suite):
            if names:
                suite = unittest.TestSuite(t for t in flat(suite) if t.id() in names)
            result = Result()
            result.failfast = asked["fail_fast"]
            suite.run(result)
            send("done")
            return result

    argv = ["python -m unittest"] + args
    if filter_:
        argv += ["-k", filter_]
    unittest.main(module=None, argv=argv, testRunner=Runner())


def run_pytest(args):
    try:
        import pytest
    except ImportError:
        send("missing", name="pytest")
        print("the tests need pytest, which is not installed", file=sys.stderr)
        sys.exit(1)
    tests = {}

    class Plugin:
        def pytest_collection_modifyitems(self, config, items):
            if names:
                rest = [i for i in items if i.nodeid not in names]
                items[:] = [i for i in items if i.nodeid in names]
                config.hook.pytest_deselected(items=rest)

        def pytest_collectreport(self, report):
            if report.failed:
                send("end", id=report.nodeid or "collection", name=report.nodeid or "collection", status="error",
                     file=report.nodeid.split("::")[0], message=cut(report.longreprtext))

        def pytest_runtest_logstart(self, nodeid, location):
            where = dict(name=location[2], file=location[0], line=(location[1] or 0) + 1)
            tests[nodeid] = dict(where, id=nodeid, status="passed", duration=0.0, message="", output="")
            send("start", id=nodeid, **where)

        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_makereport(self, item, call):
            yield
            if call.excinfo is not None and item.nodeid in tests:
                e = call.excinfo
                tests[item.nodeid]["trace"] = cut("".join(traceback.format_exception(e.type, e.value, e.tb)))

        def pytest_runtest_logreport(self, report):
            t = tests.get(report.nodeid)
            if t is None:
                return
            t["duration"] += report.duration
            if report.when == "teardown" or report.outcome != "passed":
                t["output"] = cut(report.capstdout + report.capstderr)
            if report.failed and t["status"] == "passed":
                t["status"] = "failed" if report.when == "call" else "error"
                t["message"] = cut(report.longreprtext)
                if "TestTimeout: the test took longer than" in t["message"]:
                    t["status"] = "timeout"
            elif report.skipped and t["status"] == "passed":
                t["status"] = "skipped"
                reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
                t["message"] = cut(reason)

        def pytest_runtest_logfinish(self, nodeid):
            t = tests.pop(nodeid, None)
            if t is not None:
                send("end", **t)

        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_call(self):
            start_clock()
            yield
            stop_clock()

        def pytest_sessionfinish(self):
            send("done")

    argv = ["-p", "no:cacheprovider"] + args
    if filter_:
        argv += ["-k", filter_]
    if asked["fail_fast"]:
        argv += ["-x"]
    sys.exit(pytest.main(argv, plugins=[Plugin()]))


{"unittest": run_unittest, "pytest": run_pytest}[framework](sys.argv[1:])
