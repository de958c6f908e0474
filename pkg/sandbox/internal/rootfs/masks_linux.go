package rootfs

import "golang.org/x/sys/unix"

// Masks are the parts of /proc that reveal the host, by the kind of mask.
type Masks struct{ Masked, Hidden, ReadOnly []string }

// FindMasks leaves out files that only root may read: a program whose ids belong to no user of the host can not read
// them, and every mask costs each sandbox a mount; the two most harmful files are masked nevertheless. It reads a procfs
// like the one of a sandbox, not the supervisor's own, which may show less. A missing file may appear later, with a
// module; the init skips it.
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
