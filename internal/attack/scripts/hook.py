# Imported by Python before anything it was asked to: says whether there is a filter already.
for line in open("/proc/self/status"):
    if line.startswith("Seccomp:"):
        print("hooked", line.split()[1], flush=True)
