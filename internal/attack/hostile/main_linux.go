package hostile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Play runs the attacker if this process was started as one, and then does not return. An ordinary build has done so
// before main; a build that measures coverage can write its counters only from main.
func Play() {
	if len(os.Args) > 3 && os.Args[1] == Word && os.Getenv(Variable) == os.Args[2] {
		os.Exit(attack(os.Args[3], os.Args[4:]))
	}
}

// tell is unbuffered: an attacker may be killed at any moment, and its earlier answers count.
func tell(name, got, detail string) {
	_, _ = io.WriteString(os.Stdout, name+"\t"+got+"\t"+strconv.Quote(detail)+"\n")
}

func tellNumber(name string, n int) { tell(name, strconv.Itoa(n), "") }

func tellErr(name string, err error) { tell(name, outcome(err), "") }

// outcome is "ok" or the errno's name.
func outcome(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &errno):
		if errno == 0 {
			return "ok"
		}
		if name := unix.ErrnoName(errno); name != "" {
			return name
		}
		return "errno" + strconv.Itoa(int(errno))
	case errors.Is(err, os.ErrNotExist):
		return "ENOENT"
	case errors.Is(err, io.EOF):
		return "EOF"
	}
	return "error"
}

const (
	exitTold    = 0
	exitUnknown = 99 // no such attack
)

// attack runs one attack.
func attack(verb string, args []string) int {
	play := part(verb)
	if play == nil {
		fmt.Fprintf(os.Stderr, "no attack is called %q\n", verb)
		return exitUnknown
	}
	play(args)
	return exitTold
}

// part finds an attack. (A map of them would be made at every start of every program that links this package.)
func part(verb string) func([]string) {
	switch verb {
	case "status":
		return tellStatus
	case "calls":
		return tryCalls
	case "foreign":
		return tryForeign
	case "flood":
		return flood
	case "descriptors":
		return descriptors
	case "write":
		return tryWrite
	case "read":
		return tryRead
	case "stat":
		return tryStat
	case "cat":
		return cat
	case "processes":
		return processes
	case "executable":
		return executable
	case "held-executable":
		return heldExecutable
	case "swap":
		return swap
	case "plant":
		return plant
	case "unpack":
		return unpack
	case "set-id":
		return setID
	case "execute":
		return execute
	case "deep":
		return deep
	case "many":
		return many
	case "fill":
		return fill
	case "fork":
		return forkBomb
	case "resist":
		return resist
	case "zombies":
		return zombies
	case "memory":
		return memoryBomb
	case "spin":
		return spin
	case "sleep":
		return sleep
	case "exhaust":
		return exhaust
	case "output":
		return output
	case "print":
		return printText
	case "background":
		return background
	case "stdin":
		return stdin
	case "abort":
		return abort
	case "crash":
		return crash
	case "dial":
		return dial
	case "reach":
		return reachOut
	case "query":
		return queries
	case "sockets":
		return sockets
	case "spoof":
		return spoof
	case "fragments":
		return fragments
	case "knock":
		return knock
	case "ask":
		return ask
	case "terminal":
		return terminal
	case "outside":
		return outside
	case "threads":
		return threads
	case "restricted":
		return restricted
	case "neighbour":
		return neighbour
	}
	return nil
}

func number(args []string, i int) int {
	if i >= len(args) {
		return 0
	}
	n, _ := strconv.Atoi(args[i])
	return n
}

func word(args []string, i int) string {
	if i >= len(args) {
		return ""
	}
	return args[i]
}

func duration(args []string, i int) time.Duration {
	d, _ := time.ParseDuration(word(args, i))
	return d
}

// statusFields are the fields of /proc/self/status.
func statusFields() map[string]string {
	fields := map[string]string{}
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return fields
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok {
			fields[name] = strings.Join(strings.Fields(value), " ")
		}
	}
	return fields
}

// tellStatus reports the attacker's ids and privileges, as the kernel shows them.
func tellStatus([]string) {
	fields := statusFields()
	for _, name := range []string{"Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Seccomp_filters", "CapInh", "CapPrm", "CapEff", "CapBnd",
		"CapAmb"} {
		tell(name, "ok", fields[name])
	}
	tell("pid", strconv.Itoa(os.Getpid()), "")
	tell("ppid", strconv.Itoa(os.Getppid()), "")
	sid, _ := unix.Getsid(0)
	tell("sid", strconv.Itoa(sid), "")
}
