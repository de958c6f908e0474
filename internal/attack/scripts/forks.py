# A fork bomb that stops at its first argument, should nothing else stop it.
import os, sys, time

for i in range(int(sys.argv[1])):
    if os.fork() == 0:
        os.setsid()
        time.sleep(20)
        os._exit(0)
    print(i + 1, flush=True)
print("done", flush=True)
