package rootfs

import "golang.org/x/sys/unix"

// Masks are the parts of /proc that tell about the host, by how they are masked.
type Masks struct{ Masked, Hidden, ReadOnly []string }

// FindMasks leaves out what only root may read: a program whose ids are no user's outside can not read it, and every mask costs each
// sandbox a mount; two whose harm is the greatest are masked all the same. It looks at a procfs like the one a sandbox will have, not at
// the one that we were given, which may show less. What is not there may come, with a module; the init does without it.
func FindMasks() Masks {
	proc, err := NewMount("proc", 0)
	if err == nil {
		defer unix.Close(proc)
	}
	readable := func(names ...string) (list []string) {
		for _, n := range names {
			var st unix.Stat_t
			if err != nil || unix.Fstatat(proc, n, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Mode&0o007 != 0 {
				list = append(list, "/proc/"+n)
			}
		}
		return list
	}
	return Masks{
		Masked: append(readable("keys", "key-users", "kallsyms", "kmsg", "sched_debug", "timer_list", "timer_stats", "latency_stats",
			"config.gz", "cmdline", "vmallocinfo", "kpagecount", "kpageflags", "kpagecgroup", "iomem", "ioports",
			"interrupts", "softirqs"), // per processor and device; /proc/stat has their sums
			"/proc/kcore", "/proc/sysrq-trigger"), // the machine's memory, and its restart: whatever their modes
		Hidden:   readable("acpi", "asound", "scsi", "bus", "fs", "irq", "pressure"),
		ReadOnly: []string{"/proc/sys"},
	}
}
