package initproc

import (
	"bytes"
	"strconv"

	"golang.org/x/sys/unix"
)

// routeCounters are the kernel's counters of connections and packets for which this network namespace has no route. They are opened while
// the program runs, because that takes longer than reading them. The program can not reset them.
type routeCounters struct {
	own    bool // this process is in a network namespace of its own
	opened bool
	v4, v6 int // descriptors; -1 is none
}

// open opens the counters of this process's namespace. Without a loopback the kernel does not count for IPv6: it finds no source address
// before it looks for a route.
func (c *routeCounters) open() {
	if !c.own || c.opened {
		return
	}
	*c = countersOf("self")
}

// countersOf opens the counters of a process's namespace.
func countersOf(process string) routeCounters {
	dir := "/proc/" + process + "/net/"
	c := routeCounters{own: true, opened: true, v4: openCounters(dir + "snmp"), v6: -1}
	if fd := openCounters(dir + "if_inet6"); fd >= 0 {
		if n, err := unix.Read(fd, make([]byte, 1)); n > 0 && err == nil {
			c.v6 = openCounters(dir + "snmp6")
		}
		_ = unix.Close(fd)
	}
	return c
}

// NoRoutes returns how often no route was found in the network namespace of another process; 0 if that is this process's own, or not known.
func NoRoutes(pid int) uint64 {
	var own, theirs unix.Stat_t
	if unix.Stat("/proc/self/ns/net", &own) != nil || unix.Stat("/proc/"+strconv.Itoa(pid)+"/ns/net", &theirs) != nil || own.Ino == theirs.Ino {
		return 0
	}
	c := countersOf(strconv.Itoa(pid))
	defer closeAll([]int{c.v4, c.v6})
	return c.noRoutes()
}

func openCounters(path string) int {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil { // a kernel without it counts nothing
		return -1
	}
	return fd
}

// noRoutes returns how often no route was found since the namespace was made.
func (c *routeCounters) noRoutes() (n uint64) {
	c.open()
	if !c.opened {
		return 0
	}
	buf := make([]byte, 8<<10)
	if size, err := unix.Pread(c.v4, buf, 0); err == nil {
		n = numberBelow(buf[:size], "OutNoRoutes")
	}
	if size, err := unix.Pread(c.v6, buf, 0); err == nil {
		n += numberAfter(buf[:size], "Ip6OutNoRoutes")
	}
	return n
}

// numberBelow reads a table of one line of names and one of numbers.
func numberBelow(text []byte, name string) uint64 {
	names, rest, _ := bytes.Cut(text, []byte("\n"))
	numbers, _, _ := bytes.Cut(rest, []byte("\n"))
	for len(names) > 0 {
		var word, value []byte
		word, names, _ = bytes.Cut(names, []byte(" "))
		value, numbers, _ = bytes.Cut(numbers, []byte(" "))
		if string(word) == name {
			n, _ := strconv.ParseUint(string(value), 10, 64)
			return n
		}
	}
	return 0
}

// numberAfter reads a list of names and numbers, which may be numbers of KiB.
func numberAfter(text []byte, name string) uint64 {
	_, rest, _ := bytes.Cut(text, []byte(name))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	n, _ := strconv.ParseUint(string(bytes.TrimSpace(bytes.TrimSuffix(line, []byte(" kB")))), 10, 64)
	return n
}
