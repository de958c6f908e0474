# The hook of a cold start. The interpreter imports it as sitecustomize, before it looks at the program. Each line that the program prints
# is then written at once, and by one write, as on a terminal. PYTHONUNBUFFERED would make two writes of a print. The hook takes back
# every trace of itself, and what the machine has under this name is imported in its place.
import os
import sys

for stream in sys.stdout, sys.stderr:
    if not stream.write_through:  # as the request has it, by PYTHONUNBUFFERED
        stream.reconfigure(line_buffering=True)
try:
    import faulthandler

    faulthandler.register(16, 2, True)  # StackSignal: all threads, to standard error
    del sys.modules["faulthandler"], faulthandler
except (ImportError, AttributeError):  # an interpreter other than CPython
    pass
here = os.path.dirname(__file__)
sys.path.remove(here)
sys.path_importer_cache.pop(here, None)
del sys.modules["sitecustomize"]
own = os.environ.pop("PYTHONPATH")[len(here) + 1:]
if own:
    os.environ["PYTHONPATH"] = own
try:
    os.unlink(__file__)
    if not sys.dont_write_bytecode:
        os.unlink(__cached__)
        os.rmdir(os.path.dirname(__cached__))
    os.rmdir(here)
except OSError:
    pass
import sitecustomize  # noqa: E402,F401  the machine's own, or the error that it has none
