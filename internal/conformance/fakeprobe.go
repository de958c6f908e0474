package conformance

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// fakeProbe imitates the probe as far as it needs no kernel.
func fakeProbe(p *FakeProcess) sandbox.Exit {
	args := p.Args[1:]
	number := func(i int) int {
		n, err := strconv.Atoi(args[i])
		if err != nil {
			panic(err)
		}
		return n
	}
	sleep := func(i int) {
		d, err := time.ParseDuration(args[i])
		if err != nil {
			panic(err)
		}
		select {
		case <-time.After(d):
		case <-p.Killed:
		case <-p.t.ended:
		}
	}
	stderr := p.Stderr
	if stderr == nil {
		stderr = p.Stdout
	}
	switch args[0] {
	case "args":
		for _, a := range args[1:] {
			fmt.Fprintf(p.Stdout, "%q\n", a)
		}
	case "say":
		fmt.Fprintln(p.Stdout, strings.Join(args[1:], " "))
	case "fail":
		fmt.Fprintln(stderr, strings.Join(args[2:], " "))
		return sandbox.Exit{Code: number(1)}
	case "exit":
		return sandbox.Exit{Code: number(1)}
	case "die":
		return sandbox.Exit{Signal: number(1)}
	case "cat":
		_, _ = io.Copy(p.Stdout, p.Stdin)
	case "digest":
		h := sha256.New()
		n, _ := io.Copy(h, p.Stdin)
		fmt.Fprintf(p.Stdout, "%d %x\n", n, h.Sum(nil))
	case "noise":
		h := sha256.New()
		n, err := io.CopyN(io.MultiWriter(p.Stdout, h), newNoise(), int64(number(1)))
		fmt.Fprintf(stderr, "%d %x\n", n, h.Sum(nil))
		if err != nil {
			return sandbox.Exit{Code: 1}
		}
	case "turns":
		for in := make([]byte, 1); ; {
			if _, err := p.Stdin.Read(in); err != nil {
				break
			}
			first, second := p.Stdout, stderr
			if in[0] == 'e' {
				first, second = second, first
			}
			_, _ = io.WriteString(first, "1")
			_, _ = io.WriteString(second, "2")
		}
	case "both":
		for i := range number(1) {
			fmt.Fprintf(p.Stdout, "out %d\n", i)
			fmt.Fprintf(stderr, "err %d\n", i)
		}
	case "env":
		for _, e := range p.Environ() {
			fmt.Fprintf(p.Stdout, "%q\n", e)
		}
	case "put":
		p.Files.Store(path.Join(p.Workdir, args[1]), args[2])
		fmt.Fprintln(p.Stdout, "ok")
	case "get":
		if text, ok := p.Files.Load(path.Join(p.Workdir, args[1])); ok {
			fmt.Fprintf(p.Stdout, "ok %q\n", text)
		} else {
			fmt.Fprintln(p.Stdout, `ENOENT ""`)
		}
	case "sleep":
		sleep(1)
	case "ready":
		fmt.Fprintln(p.Stdout, "ready")
		sleep(1)
	case "stubborn":
		p.Trap()
		fmt.Fprintln(p.Stdout, "ready")
		<-p.Killed
	case "polite":
		c := p.Trap()
		fmt.Fprintln(p.Stdout, "ready")
		for {
			select {
			case sig := <-c:
				if sig == syscall.SIGTERM {
					fmt.Fprintln(p.Stdout, "bye")
					return sandbox.Exit{Code: 7}
				}
			case <-p.Killed:
				return sandbox.Exit{}
			}
		}
	case "terminal":
		if p.TTY == nil {
			fmt.Fprintln(p.Stdout, "ENOTTY")
			break
		}
		var b bytes.Buffer
		for fd := range 3 {
			fmt.Fprintf(&b, "%d tty %d %d\r\n", fd, p.TTY.Rows, p.TTY.Cols)
		}
		_, _ = p.Stdout.Write(b.Bytes())
	default:
		fmt.Fprintln(stderr, "probe: unknown action", args[0])
		return sandbox.Exit{Code: 99}
	}
	return sandbox.Exit{}
}
