# Threads, processes, an event loop, shared memory, files: nothing of it is an attack.
import asyncio, mmap, os, socket, subprocess, sys, tempfile, threading

found = []
threads = [threading.Thread(target=found.append, args=(n,)) for n in range(8)]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert sorted(found) == list(range(8))

assert subprocess.run(["/bin/echo", "child"], capture_output=True, text=True).stdout == "child\n"


async def main():
    p = await asyncio.create_subprocess_exec("/bin/true")
    assert await p.wait() == 0
    await asyncio.gather(*(asyncio.sleep(0.001) for _ in range(10)))


asyncio.run(main())

with tempfile.TemporaryFile() as f:
    f.truncate(4096)
    m = mmap.mmap(-1 if sys.argv[1] == "anonymous" else f.fileno(), 4096)
if os.fork() == 0:
    m[0] = 7
    os._exit(0)
os.wait()
assert m[0] == 7

a, b = socket.socketpair()
a.send(b"x")
assert b.recv(1) == b"x"
with tempfile.TemporaryDirectory() as d:
    os.replace(os.path.join(d, os.path.basename(tempfile.mkstemp(dir=d)[1])), os.path.join(d, "moved"))
print("ordinary")
