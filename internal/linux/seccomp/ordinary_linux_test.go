package seccomp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ordinary is what programs do all day (S8); each entry must work under the filter.
var ordinary = []struct {
	name string
	run  func() error
}{
	{"threads", func() error {
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { runtime.LockOSThread(); time.Sleep(time.Millisecond) }) // each ends its thread
		}
		wg.Wait()
		return nil
	}},
	{"fork and exec", func() error { return exec.Command("/bin/true").Run() }},
	{"pipe and shell", func() error {
		out, err := exec.Command("/bin/sh", "-c", "echo a b c | wc -w").Output()
		if err == nil && strings.TrimSpace(string(out)) != "3" {
			err = fmt.Errorf("got %q", out)
		}
		return err
	}},
	{"tcp", func() error { return stream("tcp", "127.0.0.1:0") }},
	{"tcp6", func() error {
		err := stream("tcp6", "[::1]:0")
		if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT) && !ipv6() {
			return nil // a machine without IPv6
		}
		return err
	}},
	{"unix stream", func() error { return stream("unix", "s.sock") }},
	{"unix seqpacket", func() error { return stream("unixpacket", "p.sock") }},
	{"udp", func() error {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.WriteTo([]byte("x"), c.LocalAddr()); err != nil {
			return err
		}
		_, _, err = c.ReadFrom(make([]byte, 1))
		return err
	}},
	{"socketpair", func() error {
		_, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return err
	}},
	{"name lookup", func() error { _, err := net.LookupHost("localhost"); return err }},
	{"no interfaces, but an error", func() error {
		if _, err := net.Interfaces(); !errors.Is(err, unix.EAFNOSUPPORT) {
			return fmt.Errorf("net.Interfaces: %w, want EAFNOSUPPORT", err)
		}
		return nil
	}},
	{"epoll and eventfd", func() error {
		ep, err := unix.EpollCreate1(0)
		if err != nil {
			return err
		}
		ev, err := unix.Eventfd(1, unix.EFD_NONBLOCK)
		if err != nil {
			return err
		}
		if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, ev, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
			return err
		}
		n, err := unix.EpollWait(ep, make([]unix.EpollEvent, 1), 1000)
		if err == nil && n != 1 {
			err = fmt.Errorf("%d events", n)
		}
		return err
	}},
	{"inotify", func() error {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			return err
		}
		_, err = unix.InotifyAddWatch(fd, ".", unix.IN_CREATE)
		return err
	}},
	{"timerfd", func() error {
		fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, 0)
		if err != nil {
			return err
		}
		if err := unix.TimerfdSettime(fd, 0, &unix.ItimerSpec{Value: unix.Timespec{Nsec: 1e6}}, nil); err != nil {
			return err
		}
		_, err = unix.Read(fd, make([]byte, 8))
		return err
	}},
	{"timer_create", passes(unix.SYS_TIMER_CREATE, 9999, 0, 0)},
	{"signals", func() error {
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGUSR1)
		defer signal.Stop(c)
		if err := unix.Kill(os.Getpid(), unix.SIGUSR1); err != nil {
			return err
		}
		<-c
		return nil
	}},
	{"signalfd", passes(unix.SYS_SIGNALFD4, bad, 0, 0, 0)},
	{"futex", passes(unix.SYS_FUTEX, 0, 1, 1, 0, 0, 0)},
	{"memfd", func() error {
		fd, err := unix.MemfdCreate("m", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			return err
		}
		if err := unix.Ftruncate(fd, 4096); err != nil {
			return err
		}
		b, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		if err := unix.Mprotect(b, unix.PROT_READ); err != nil {
			return err
		}
		return unix.Munmap(b)
	}},
	{"writable then executable memory", func() error {
		b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return err
		}
		return unix.Mprotect(b, unix.PROT_READ|unix.PROT_EXEC)
	}},
	{"getrandom", func() error { _, err := unix.Getrandom(make([]byte, 16), 0); return err }},
	{"rseq", passes(unix.SYS_RSEQ, 0, 0, bad, 0)},
	{"membarrier", passes(unix.SYS_MEMBARRIER, 0, 0, 0)},
	{"statx", func() error { var s unix.Statx_t; return unix.Statx(unix.AT_FDCWD, ".", 0, unix.STATX_ALL, &s) }},
	{"openat2", func() error {
		fd, err := unix.Openat2(unix.AT_FDCWD, ".", &unix.OpenHow{Flags: unix.O_RDONLY, Resolve: unix.RESOLVE_BENEATH})
		if err == nil {
			err = unix.Close(fd)
		}
		return err
	}},
	{"scheduler", func() error {
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(0, &set); err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return err
		}
		_, err := unix.SchedGetAttr(0, 0)
		return err
	}},
	{"sched_yield", passes(unix.SYS_SCHED_YIELD)},
	{"thread name", func() error {
		name, _ := unix.BytePtrFromString("ordinary")
		return unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(name)), 0, 0, 0)
	}},
	{"rlimit", func() error { var r unix.Rlimit; return unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &r) }},
	{"pidfd", func() error {
		fd, err := unix.PidfdOpen(os.Getpid(), 0)
		if err != nil {
			return err
		}
		return unix.PidfdSendSignal(fd, 0, nil, 0)
	}},
	{"copy_file_range", func() error {
		if err := os.WriteFile("src", []byte("x"), 0o600); err != nil {
			return err
		}
		in, err := os.Open("src")
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := os.Create("dst")
		if err != nil {
			return err
		}
		defer out.Close()
		_, err = io.Copy(out, in)
		return err
	}},
	{"set-uid bit by default", func() error { return os.Chmod("src", 0o755|os.ModeSetuid) }},
	{"links and renames", func() error {
		return errors.Join(os.Symlink("src", "sym"), os.Link("src", "hard"), os.Rename("hard", "harder"), os.Remove("sym"))
	}},
	{"shared memory", func() error {
		id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, 0o600)
		if err != nil {
			if errors.Is(err, unix.ENOSYS) {
				return nil // a kernel without System V IPC
			}
			return err
		}
		_, err = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
		return err
	}},
	{"terminal size", passes(unix.SYS_IOCTL, bad, unix.TIOCGWINSZ, 0)},
	{"terminal", func() error {
		master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(master)
		if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
		if errno != 0 {
			return errno
		}
		defer unix.Close(int(peer))
		_, err1 := unix.IoctlGetInt(master, unix.TIOCGPTN)
		_, err2 := unix.IoctlGetInt(int(peer), unix.TIOCINQ) // FIONREAD
		attributes, err := unix.IoctlGetTermios(int(peer), unix.TCGETS2)
		if err == nil {
			err = errors.Join(unix.IoctlSetTermios(int(peer), unix.TCSETSW2, attributes), unix.IoctlSetTermios(int(peer), unix.TCSETSF, attributes))
		}
		return errors.Join(err, err1, err2, unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, &unix.Winsize{Row: 5, Col: 7}))
	}},
	{"interfaces by ioctl", func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		lo, err := unix.NewIfreq("lo")
		if err == nil {
			err = errors.Join(unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, lo), unix.IoctlIfreq(fd, unix.SIOCGIFMTU, lo),
				unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, lo))
		}
		return err
	}},
	{"copy that would rather clone", func() error { return exec.Command("cp", "--reflink=auto", "/etc/passwd", "copied").Run() }},
	{"personality query", passes(unix.SYS_PERSONALITY, 0xffffffff)},
	{"landlock", passes(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 1)},
	{"close_range", passes(unix.SYS_CLOSE_RANGE, 9000, 9001, 0)},
	{"mq_open", passes(unix.SYS_MQ_OPEN, bad)},
}

// passes reports a call that fails as the filter's refusals do. Arguments may
// be invalid: any other errno came from the kernel's own code.
func passes(nr uintptr, a ...uintptr) func() error {
	return func() error {
		if errno := raw(nr, a...)(); errno == unix.EPERM || errno == unix.ENOSYS && nr != unix.SYS_LANDLOCK_CREATE_RULESET {
			return errno
		}
		return nil
	}
}

func ipv6() bool {
	_, err := os.Stat("/proc/net/if_inet6")
	return err == nil
}

func stream(network, address string) error {
	l, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			c.Write([]byte("hello"))
			c.Close()
		}
	}()
	c, err := net.Dial(network, l.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = io.ReadFull(c, make([]byte, 5))
	return err
}

func TestOrdinaryCalls(t *testing.T) {
	for _, policy := range []string{"default", "setid"} {
		out, err := childCommand(t, "ordinary", policy).CombinedOutput()
		if err != nil {
			t.Fatalf("policy %s: %v\n%s", policy, err, out)
		}
		for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
			switch {
			case line == "done":
			case policy == "setid" && (strings.HasPrefix(line, "openat2:") || strings.HasPrefix(line, "set-uid bit")):
			default:
				t.Errorf("policy %s: %s", policy, line)
			}
		}
		if !bytes.HasSuffix(bytes.TrimSpace(out), []byte("done")) {
			t.Errorf("policy %s: the child did not finish", policy)
		}
	}
}

// Real programs, each run twice: without a filter, to know that the program
// works here at all, and under it.
func TestOrdinaryPrograms(t *testing.T) {
	if testing.Short() {
		t.Skip("starts JVMs and compilers")
	}
	for _, tc := range []struct {
		name  string
		needs []string // programs; the first one's path is $0 of argv
		files map[string]string
		argv  []string // $1… stand for needs
		wants string
	}{
		{name: "python", needs: []string{"python3"}, argv: []string{"$0", "-c", pythonProgram}, wants: "python ok"},
		{name: "node", needs: []string{"node"}, argv: []string{"$0", "-e", nodeProgram}, wants: "node ok"},
		{name: "java", needs: []string{"java", "javac"}, files: map[string]string{"Main.java": javaProgram}, argv: []string{"$0", "Main.java"},
			wants: "java ok"},
		{name: "java version", needs: []string{"java"}, argv: []string{"$0", "-version"}, wants: "version"},
		{name: "gcc", needs: []string{"sh", "gcc"}, files: map[string]string{"m.c": cProgram},
			argv: []string{"$0", "-c", "$1 -O1 -pthread -o m m.c && ./m"}, wants: "c ok"},
		{name: "go", needs: []string{"sh", "go"}, files: map[string]string{"m.go": goProgram}, argv: []string{"$0", "-c", "$1 run m.go"},
			wants: "go ok"},
		{name: "rust", needs: []string{"sh", "rustc"}, files: map[string]string{"m.rs": rustProgram},
			argv: []string{"$0", "-c", "$1 m.rs && ./m"}, wants: "rust ok"},
		{name: "sqlite", needs: []string{"sqlite3"}, argv: []string{"$0", "t.db",
			"create table t(a); insert into t values(42); select 'sqlite ok', a from t"}, wants: "sqlite ok|42"},
		{name: "bash", needs: []string{"bash"}, argv: []string{"$0", "-c",
			`set -e; f=$(mktemp -p .); (sleep 0.01 & wait); seq 3 | tee "$f" | sort -r >/dev/null; cat <(echo bash) "$f" | head -1
				tar cf a.tar "$f"; tar xpf a.tar; cp -a "$f" g; echo ok`}, wants: "bash\nok"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			argv := append([]string(nil), tc.argv...)
			for i, name := range tc.needs {
				path := locate(t, name)
				for k := range argv {
					argv[k] = strings.ReplaceAll(argv[k], fmt.Sprintf("$%d", i), path)
				}
			}
			run := func(policy string) (string, error) {
				cmd := childCommand(t, "exec", policy, argv...)
				refused := func() []Refusal { return nil }
				if policy == "counted" {
					refused = countRefusals(t, cmd, Policy{Notify: true})
				}
				for name, text := range tc.files {
					// A comment of its own, so that no compiler's cache answers.
					text += fmt.Sprintf("\n// %s %d\n", policy, time.Now().UnixNano())
					if err := os.WriteFile(filepath.Join(cmd.Dir, name), []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				out, err := cmd.CombinedOutput()
				if err == nil && !strings.Contains(string(out), tc.wants) {
					err = fmt.Errorf("output does not contain %q", tc.wants)
				}
				listing := func(r Refusal) bool { return r.Call == "socket(AF_NETLINK)" } // of interfaces, as the programs expect
				if list := slices.DeleteFunc(refused(), listing); err == nil && len(list) > 0 {
					err = fmt.Errorf("counted as refused: %+v", list)
				}
				return string(out), err
			}
			if out, err := run("none"); err != nil {
				t.Skipf("%s does not work here without a filter either: %v\n%s", tc.name, err, out)
			}
			for _, policy := range []string{"default", "setid", "counted"} {
				if out, err := run(policy); err != nil {
					t.Errorf("%s under policy %s: %v\n%s", tc.name, policy, err, out)
				}
			}
		})
	}
}

const (
	pythonProgram = `
import asyncio, concurrent.futures as cf, multiprocessing as mp, os, shutil, socket, subprocess, sys, tempfile, threading, time
assert socket.getaddrinfo('localhost', 80)
t = [threading.Thread(target=time.sleep, args=(0.01,)) for _ in range(8)]
[x.start() for x in t]; [x.join() for x in t]
assert subprocess.run(['/bin/echo', 'x'], capture_output=True, close_fds=True, start_new_session=True).stdout == b'x\n'
async def main():
    async def echo(r, w):
        w.write(await r.read(4)); await w.drain(); w.close()
    s = await asyncio.start_server(echo, '127.0.0.1', 0)
    r, w = await asyncio.open_connection(*s.sockets[0].getsockname())
    w.write(b'ping'); assert await r.read(4) == b'ping'; w.close(); s.close()
    p = await asyncio.create_subprocess_exec('/bin/true'); assert await p.wait() == 0
asyncio.run(main())
try:
    socket.if_nameindex()
except OSError:
    pass
mp.set_start_method('fork')
with mp.Pool(2) as p: assert p.map(abs, [-1, -2]) == [1, 2]
with cf.ThreadPoolExecutor(4) as e: assert list(e.map(abs, [-3])) == [3]
a, b = socket.socketpair(); a.send(b'x'); assert b.recv(1) == b'x'
with tempfile.TemporaryDirectory(dir='.') as d:
    open(d + '/f', 'w').write('x'); shutil.copy2(d + '/f', d + '/g'); os.chmod(d + '/g', 0o755)
import pty
pid, fd = pty.fork()
if pid == 0: os._exit(0)
os.waitpid(pid, 0)
print('python ok')
`
	nodeProgram = `
const { Worker } = require('worker_threads'), fs = require('fs'), os = require('os'), dns = require('dns'),
  http = require('http'), cp = require('child_process');
// Throws without netlink whatever the errno is; an exception is graceful enough.
try { os.networkInterfaces() } catch (e) { if (e.code !== 'ERR_SYSTEM_ERROR') throw e }
cp.execFileSync('/bin/true');
fs.writeFileSync('a', 'x'); fs.copyFileSync('a', 'b'); fs.watch('.').close(); fs.chmodSync('b', 0o755);
const s = http.createServer((q, r) => r.end('hi')).listen(0, '127.0.0.1', () =>
  http.get({ port: s.address().port, host: '127.0.0.1' }, r => {
  r.resume(); r.on('end', () => { s.close();
    new Worker('require("worker_threads").parentPort.postMessage(1)', { eval: true }).on('message', () =>
      fs.promises.readFile('a').then(() => dns.lookup('localhost', e => { if (e) throw e; console.log('node ok') }))) }) }));
`
	javaProgram = `
import java.net.*; import java.nio.file.*; import java.util.*; import java.util.concurrent.*;
public class Main { public static void main(String[] a) throws Exception {
  var e = Executors.newFixedThreadPool(4); e.submit(() -> 1).get(); e.shutdown();
  if (new ProcessBuilder("/bin/true").start().waitFor() != 0) throw new Exception("exec");
  try (var s = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
       var c = new Socket(s.getInetAddress(), s.getLocalPort()); var d = s.accept()) {
    d.getOutputStream().write(7); if (c.getInputStream().read() != 7) throw new Exception("socket"); }
  NetworkInterface.getNetworkInterfaces();
  InetAddress.getByName("localhost");
  var p = Files.createTempFile(Path.of("."), "x", "y"); Files.writeString(p, "x"); Files.move(p, Path.of("z"));
  System.gc(); System.out.println("java ok"); } }
`
	cProgram = `
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void *f(void *p) { return p; }
int main(void) { pthread_t t; if (pthread_create(&t, 0, f, 0) || pthread_join(t, 0)) return 1;
  if (fork() == 0) _exit(0); wait(0); if (system("true")) return 2; puts("c ok"); return 0; }
`
	goProgram = `package main

import ("fmt"; "net"; "os/exec")

func main() {
	l, err := net.Listen("tcp", "127.0.0.1:0"); if err != nil { panic(err) }
	l.Close()
	if err := exec.Command("/bin/true").Run(); err != nil { panic(err) }
	fmt.Println("go ok")
}
`
	rustProgram = `
use std::{net::TcpListener, process::Command, thread};
fn main() { thread::spawn(|| 1).join().unwrap(); TcpListener::bind("127.0.0.1:0").unwrap();
  assert!(Command::new("/bin/true").status().unwrap().success()); println!("rust ok"); }
`
)
