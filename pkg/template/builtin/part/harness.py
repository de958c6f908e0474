
import dataclasses
import difflib
import inspect
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback

CASES = json.loads(CASES)
SNIPPET = os.path.join(os.path.dirname(os.path.abspath(__file__)), "snippet.py")
MOST_BYTES = 8 << 20
MOST_LINES = 200


def find_function(module):
    found = module
    for part in FUNCTION.split("."):
        if inspect.isclass(found):
            found = found()
        if not hasattr(found, part):
            raise SystemExit(f"harness: the snippet defines no {FUNCTION}")
        found = getattr(found, part)
    return found


def plain(value):
    """What JSON has words for; anything else is an error."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=repr)
    if isinstance(value, (list, tuple, range)) or inspect.isgenerator(value):
        return [plain(item) for item in value]
    raise TypeError(f"the result is a {type(value).__name__}, which cases can not express")


def same(want, got, case):
    if isinstance(want, bool) or isinstance(got, bool):
        return want is got
    if isinstance(want, (int, float)) and isinstance(got, (int, float)):
        return want == got or (math.isfinite(got) and abs(want - got) <= case["tolerance"])
    if isinstance(want, str) and isinstance(got, str):
        return clean(want, case) == clean(got, case)
    if isinstance(want, list) and isinstance(got, list):
        return len(want) == len(got) and all(same(w, g, case) for w, g in zip(want, got))
    if isinstance(want, dict) and isinstance(got, dict):
        return want.keys() == got.keys() and all(same(want[k], got[k], case) for k in want)
    return want is None and got is None


def clean(text, case):
    if case["ignore_trailing_space"]:
        return "\n".join(line.rstrip() for line in text.split("\n")).rstrip("\n")
    return text


def show(value):
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)


def child(case, result):
    """Calls the function for one case, in a process of its own."""
    import asyncio
    import importlib.util
    try:
        spec = importlib.util.spec_from_file_location("snippet", SNIPPET)
        module = importlib.util.module_from_spec(spec)
        sys.modules["snippet"] = module
        spec.loader.exec_module(module)
        got = find_function(module)(*case["args"])
        if inspect.iscoroutine(got):
            got = asyncio.run(got)
        got = plain(got)
    except SystemExit:
        raise
    except BaseException as error:
        # The trace begins where the snippet does.
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename != SNIPPET:
            trace = trace.tb_next
        sys.stdout.flush()
        sys.stderr.write("".join(traceback.format_exception(type(error), error, trace)))
        sys.stderr.flush()
        kind = type(error).__name__
        report = {"ok": False, "note": f"{kind}: {error}" if str(error) else kind}
    else:
        report = {"ok": same(case["want"], got, case), "got": show(got), "note": "wrong result"}
    sys.stdout.flush()
    with open(result, "w", encoding="utf-8", errors="surrogatepass") as file:
        json.dump(report, file)
    os._exit(0)  # threads that the snippet left do not hold it up


def read(path):
    with open(path, "rb") as file:
        return file.read(MOST_BYTES)


def run(number, case, work):
    """Runs one case; returns what is wrong with it (or nothing), what it gave and what it printed."""
    names = {name: os.path.join(work, f"{number}.{name}") for name in ("in", "out", "err", "result")}
    with open(names["in"], "wb") as file:
        file.write(case["stdin"].encode())
    command, env = [sys.executable, "-B", SNIPPET, *case["args"]], dict(os.environ)
    if KIND == "call":
        command = [sys.executable, "-B", os.path.abspath(__file__)]
        env.update(SANDBOX_CASE=str(number), SANDBOX_RESULT=names["result"])
    with open(names["in"], "rb") as stdin, open(names["out"], "wb") as out, open(names["err"], "wb") as err:
        process = subprocess.Popen(command, stdin=stdin, stdout=out, stderr=err, env=env, start_new_session=True)
        try:
            code = process.wait(case["timeout_ms"] / 1000)
        except subprocess.TimeoutExpired:
            code = None
        try:
            os.killpg(process.pid, signal.SIGKILL)  # what the case left running, too
        except OSError:
            pass
        process.wait()
    stdout, stderr = read(names["out"]), read(names["err"])
    if code is None:
        return f"timed out after {case['timeout_ms']} ms", None, stdout, stderr
    if code < 0:
        return f"killed by signal {-code}", None, stdout, stderr
    if KIND == "call":
        if not os.path.exists(names["result"]):
            return f"exited with code {code} before the function returned", None, stdout, stderr
        with open(names["result"], encoding="utf-8", errors="surrogatepass") as file:
            report = json.load(file)
        return None if report["ok"] else report["note"], report.get("got"), stdout, stderr
    text = stdout.decode("utf-8", "backslashreplace")
    note = None
    if clean(case["want"], case) != clean(text, case):
        note = "wrong output"
    if code != case["exit_code"]:
        note = f"exit code {code}, not {case['exit_code']}" + (f"; {note}" if note else "")
    return note, text, b"", stderr


def differences(want, got):
    lines = list(difflib.unified_diff(want.split("\n"), got.split("\n"), "want", "got", lineterm=""))
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"… {len(lines) - MOST_LINES} more lines"]
    return lines


def quoted(title, data):
    lines = data.decode("utf-8", "backslashreplace").rstrip("\n").split("\n")
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"… {len(lines) - MOST_LINES} more lines"]
    return [title + ":", *("  | " + line for line in lines)] if data else []


def main():
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    print(CASES[0]["heading"] + "  RESULT     TIME  NOTE")
    failed, details = 0, []
    with tempfile.TemporaryDirectory() as work:
        for number, case in enumerate(CASES):
            start = time.monotonic()
            note, got, stdout, stderr = run(number, case, work)
            took = int((time.monotonic() - start) * 1000)
            print(f"{case['label']}  {'FAIL' if note else 'pass':6}{took:6} ms  {(note or '').splitlines()[0] if note else ''}".rstrip(), flush=True)
            if note:
                failed += 1
                details += ["", f"FAIL {case['name']}: {note}"]
                if got is not None:
                    details += differences(show(case["want"]), got)
                details += quoted("stdout", stdout) + quoted("stderr", stderr)
    print("\n".join(details + ["", f"{len(CASES) - failed} passed, {failed} failed"]))
    return 1 if failed else 0


if __name__ == "__main__":
    if "SANDBOX_CASE" in os.environ:
        child(CASES[int(os.environ.pop("SANDBOX_CASE"))], os.environ.pop("SANDBOX_RESULT"))
    sys.exit(main())
