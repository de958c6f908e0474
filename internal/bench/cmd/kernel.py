# A client of ipykernel. For each line it prints the seconds that the thing took: "start" a kernel until it answers, or a "cell" 1+1.
import sys
import time

from jupyter_client import KernelManager


def start():
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=120)
    return manager, client


def cell(client):
    asked = client.execute("1+1")
    value = None
    while True:
        message = client.get_iopub_msg(timeout=120)
        if message["parent_header"].get("msg_id") != asked:
            continue
        if message["msg_type"] == "execute_result":
            value = message["content"]["data"]["text/plain"]
        elif message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            break
    assert value == "2", value


def end(manager, client):
    client.stop_channels()
    manager.shutdown_kernel(now=True)


kernel = None
for line in sys.stdin:
    if line.strip() == "start":
        began = time.perf_counter()
        other = start()
        took = time.perf_counter() - began
        end(*other)
    else:
        if kernel is None:
            kernel = start()
        began = time.perf_counter()
        cell(kernel[1])
        took = time.perf_counter() - began
    print(f"{took:.9f}", flush=True)
if kernel is not None:
    end(*kernel)
