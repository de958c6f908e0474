package session

import "strings"

// dialect has the cells of a language for the suite. An empty cell is something that the language can not do; the table says why.
type dialect struct {
	language   string
	set        string // declares x as 41
	get        string // shows x + 1
	again      string // declares x once more, as 51
	fails      string // fails with an error of the language; the session goes on
	says       string // the error on stderr
	broken     string // has a syntax error
	loop       string // never ends
	block      string // waits for ever
	exits      string // ends the interpreter with exit code 7
	exitsAside string // does so in another thread
	interlace  string // prints o1 to stdout, e1 to stderr, o2 to stdout
	huge       string // prints 3 MiB of a's
	value      string // has a value of 50 MiB of a's
	raises     string // fails with an error whose message has MiBs of a's
	binary     string // prints the bytes 0, 255, 10
	unicode    string // shows ä€😀 twice
	asks       string // asks for a line with the prompt "name? " and prints it in angle brackets
	closes     string // closes its standard streams and every descriptor above
	forges     string // writes a frame that says that the cell succeeded, and fails
	steals     string // lets another thread or process read the sockets of the interpreter for ever, and prints "stolen"
	kills      string // sends SIGKILL to its own process
	fills      string // takes memory without end
	thread     string // starts a thread or process that outlives the cell, and prints "started"
	late       string // prints "begun"; when the file over exists, something prints "late" and makes the file printed
	forks      string // makes a process that ends at once
	incomplete string // is the beginning of a cell
	completes  string // ends with a word to complete
	completed  string // is one of its completions
	variable   string // the name that set declares
	state      bool   // an interpreter lives between the cells
}

var javascript = dialect{
	language: "javascript", state: true, variable: "x",
	set: "const x = 41", get: "console.log(x + 1)", again: "const x = 51",
	fails: "null.f", says: "TypeError", broken: "function (", incomplete: "function f() {",
	loop: "while (true) {}", block: "await new Promise(() => {})",
	exits: "process.exit(7)", exitsAside: "setTimeout(() => process.exit(7), 0); await new Promise(() => {})",
	interlace: "console.log('o1'); console.error('e1'); console.log('o2')",
	huge:      "console.log('a'.repeat(3 << 20))",
	value:     "'a'.repeat(50 << 20)", raises: "throw new Error('a'.repeat(10 << 20))",
	binary:  "process.stdout.write(Buffer.from([0, 255, 10])); undefined",
	unicode: "const é = 'ä€😀'; console.log(é); é",
	asks:    "console.log('<' + prompt('name? ') + '>')",
	closes:  "{ const fs = require('fs'); for (let i = 0; i < 256; i++) { try { fs.closeSync(i) } catch {} } }",
	forges: `{
  const fs = require('fs')
  for (let i = 0; i < 100; i++) {
    if (i == 1 || i == 2) continue
    try { fs.writeSync(i, 'done 1 11\n{"ok":true}done 2 11\n{"ok":true}') } catch {}
  }
}
null.f`,
	steals: `{
  const fs = require('fs'), { spawn } = require('child_process')
  for (const fd of fs.readdirSync('/proc/self/fd')) {
    let to = ''
    try { to = fs.readlinkSync('/proc/self/fd/' + fd) } catch {}
    if (!to.startsWith('socket:')) continue
    const stdio = [Number(fd), 'ignore', 'ignore']
    spawn('/bin/sh', ['-c', 'while :; do head -c 1 > /dev/null 2>&1 || sleep 0.01; done'], { stdio }).unref()
    console.log('stolen')
  }
}`,
	kills:  "process.kill(process.pid, 'SIGKILL'); await new Promise(() => {})",
	fills:  "{ const b = []; for (;;) b.push(Buffer.alloc(1 << 20, 1)) }",
	thread: "setInterval(() => {}, 1000); console.log('started')",
	late: `{
  const fs = require('fs')
  const timer = setInterval(() => {
    if (!fs.existsSync('/workspace/over')) return
    clearInterval(timer)
    console.log('late')
    fs.writeFileSync('/workspace/printed', '')
  }, 10)
}
console.log('begun')`,
	forks:     "require('child_process').execFileSync('/bin/true'); console.log('forked')",
	completes: "consol", completed: "console",
}

// typed returns the cells of TypeScript.
func typed(d dialect) dialect {
	d.language, d.set, d.again, d.fails = "typescript", "const x: number = 41", "const x: number = 51", "(null as any).f"
	d.block, d.unicode = "await new Promise<void>(() => {})", "const é: string = 'ä€😀'; console.log(é); é"
	d.forges = strings.TrimSuffix(d.forges, "null.f") + d.fails
	return d
}

var dialects = []dialect{
	{
		language: "python", state: true, variable: "x",
		set: "x = 41", get: "print(x + 1)", again: "x = 51", fails: "1/0", says: "ZeroDivisionError", broken: "def (", incomplete: "def f():",
		loop: "while True: pass", block: "import time; time.sleep(1000)",
		exits:      "import sys; sys.exit(7)",
		exitsAside: "import os, threading, time; threading.Thread(target=os._exit, args=(7,)).start(); time.sleep(1000)",
		interlace:  "import sys; print('o1', flush=True); print('e1', file=sys.stderr, flush=True); print('o2')",
		huge:       "print('a' * (3 << 20))",
		value:      "'a' * (50 << 20)", raises: "raise Exception('a' * (10 << 20))",
		binary:  "import sys; sys.stdout.buffer.write(bytes([0, 255, 10])); sys.stdout.flush()",
		unicode: "é = 'ä€😀'; print(é); é",
		asks:    "print('<' + input('name? ') + '>')",
		closes:  "import os; os.closerange(0, 256)",
		forges: `
import os
for fd in range(3, 100):
    try: os.write(fd, b'done 1 11\n{"ok":true}done 2 11\n{"ok":true}')
    except OSError: pass
1/0`,
		steals: `
import os, stat, threading
def steal(fd):
    while True: os.read(fd, 1)
for fd in range(3, 100):
    try: found = stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError: continue
    if found:
        threading.Thread(target=steal, args=(os.dup(fd),), daemon=True).start()
        print('stolen')`,
		kills: "import os; os.kill(os.getpid(), 9)", fills: "b = []\nwhile True: b.append(b'x' * (1 << 20))",
		thread: "import threading, time; t = threading.Thread(target=time.sleep, args=(1000,)); t.start(); print('started')",
		late: `
import os, threading, time
def late():
    while not os.path.exists('/workspace/over'): time.sleep(0.01)
    print('late', flush=True)
    open('/workspace/printed', 'w').close()
threading.Thread(target=late).start()
print('begun')`,
		forks:     "import os\npid = os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0); print('forked')",
		completes: "pri", completed: "print",
	},
	javascript,
	typed(javascript),
	{
		// No values and no threads; the error of an expansion ends a shell, and other errors have no message of the user's.
		language: "shell", state: true, variable: "x",
		set: "x=41", get: "echo $((x + 1))", again: "x=51", fails: "false", broken: "if (", incomplete: "if true; then",
		loop: "while :; do :; done", block: "sleep 1000", exits: "exit 7",
		interlace: "echo o1; echo e1 >&2; echo o2",
		huge:      "head -c 3145728 /dev/zero | tr '\\0' a; echo", binary: `printf '\000\377\n'`,
		unicode: "e='ä€😀'; echo $e $e", asks: `read -r -p "name? " name; echo "<$name>"`,
		closes: "for fd in {0..255}; do eval \"exec $fd>&-\"; done 2>/dev/null",
		forges: "for fd in {3..100}; do printf 'done 1 11\\n{\"ok\":true}done 2 11\\n{\"ok\":true}' >&$fd; done 2>/dev/null; false",
		steals: `
for link in /proc/$$/fd/*; do
    case $(readlink $link) in
    socket:*) (while read -r -N 1 -u ${link##*/}; do :; done) & echo stolen ;;
    esac
done`,
		kills: "kill -9 $$", fills: "x=a; while :; do x=$x$x; done", thread: "sleep 1000 & echo started",
		late:      "(until [ -e /workspace/over ]; do sleep 0.01; done; echo late; : > /workspace/printed) & echo begun",
		forks:     "/bin/true; echo forked",
		completes: "ech", completed: "echo",
	},
	{
		// Statements have no processes, descriptors, input or output of their own, and do not wait or exit.
		language: "sql", state: true, variable: "t",
		set: "CREATE TABLE t(x INTEGER); INSERT INTO t VALUES (41);", get: "SELECT x + 1 AS y FROM t;",
		again: "UPDATE t SET x = 51;",
		fails: "SELECT * FROM missing;", says: "missing", broken: "SELEC 1;", incomplete: "SELECT 1",
		loop:      "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT count(*) FROM n;",
		value:     "SELECT replace(hex(zeroblob(25 << 20)), '0', 'a');",
		raises:    "SELECT * FROM " + strings.Repeat("a", 3<<20) + ";",
		unicode:   "SELECT 'ä€😀' AS é, 'ä€😀' AS ü;",
		completes: "SELECT * FROM t", completed: "t",
	},
	{
		// Java has no calls for descriptors, and no fork.
		language: "java", state: true, variable: "x",
		set: "int x = 41;", get: "System.out.println(x + 1)", again: "int x = 51;",
		fails: "int z = 1 / (x - x);", says: "ArithmeticException",
		broken: "class {", incomplete: "int f() {",
		loop: "while (true) {}", block: "Thread.sleep(1000000)",
		exits:      "System.exit(7)",
		exitsAside: "new Thread(() -> System.exit(7)).start(); Thread.sleep(1000000);",
		interlace:  `System.out.println("o1"); System.err.println("e1"); System.out.println("o2");`,
		huge:       `System.out.println("a".repeat(3 << 20))`,
		value:      `"a".repeat(50 << 20)`, raises: `throw new RuntimeException("a".repeat(10 << 20));`,
		binary:  "System.out.write(0); System.out.write(255); System.out.write(10); System.out.flush();",
		unicode: `String é = "ä€😀"; System.out.println(é); é`,
		asks:    `System.out.print("name? "); var line = new Scanner(System.in).nextLine(); System.out.println("<" + line + ">");`,
		kills:   `new ProcessBuilder("/bin/sh", "-c", "kill -9 $PPID").start(); Thread.sleep(1000000);`,
		fills:   "var b = new java.util.ArrayList<byte[]>(); while (true) b.add(new byte[1 << 20]);",
		thread: `new Thread(() -> { try { Thread.sleep(1000000); } catch (InterruptedException e) {} }).start();
System.out.println("started");`,
		late: `
new Thread(() -> {
  try {
    while (!java.nio.file.Files.exists(java.nio.file.Path.of("/workspace/over"))) Thread.sleep(10);
    System.out.println("late");
    java.nio.file.Files.createFile(java.nio.file.Path.of("/workspace/printed"));
  } catch (Exception e) {}
}).start();
System.out.println("begun");`,
		completes: "Syst", completed: "System",
	},
	{
		// A cell is a program: it has no input, no driver, and nothing that outlives it; values of variables are not kept.
		language: "go", variable: "x",
		set: "const x = 41", get: "fmt.Println(x + 1)", again: "const x = 51",
		fails: `panic("oops")`, says: "oops", broken: "func (",
		incomplete: "func f() {",
		loop:       "for {}", block: "time.Sleep(1000 * time.Second)",
		exits: "os.Exit(7)", exitsAside: "go os.Exit(7); time.Sleep(1000 * time.Second)",
		interlace: `fmt.Println("o1"); fmt.Fprintln(os.Stderr, "e1"); fmt.Println("o2")`,
		huge:      `fmt.Println(strings.Repeat("a", 3<<20))`,
		value:     `strings.Repeat("a", 50<<20)`, raises: `panic(strings.Repeat("a", 10<<20))`,
		binary:  "os.Stdout.Write([]byte{0, 255, 10})",
		unicode: "é := \"ä€😀\"\nfmt.Println(é)\né",
		kills:   "syscall.Kill(os.Getpid(), 9)",
		fills:   "var b [][]byte; for { c := make([]byte, 1<<20); for i := range c { c[i] = 1 }; b = append(b, c) }",
	},
	{
		// As Go. Rust sends signals only with foreign functions: SIGABRT is its own.
		language: "rust", variable: "X",
		set: "const X: i32 = 41;", get: `println!("{}", X + 1);`,
		again: "const X: i32 = 51;",
		fails: `panic!("oops");`, says: "oops", broken: "fn (",
		incomplete: "fn f() {",
		loop:       "loop {}", block: "std::thread::sleep(std::time::Duration::from_secs(1000));",
		exits: "std::process::exit(7);", exitsAside: "std::thread::spawn(|| std::process::exit(7)).join().unwrap();",
		interlace: `println!("o1"); eprintln!("e1"); println!("o2");`,
		huge:      `println!("{}", "a".repeat(3 << 20));`,
		value:     `"a".repeat(50 << 20)`, raises: `panic!("{}", "a".repeat(10 << 20));`,
		binary:  "std::io::Write::write_all(&mut std::io::stdout(), &[0, 255, 10]).unwrap();",
		unicode: "let é = \"ä€😀\";\nprintln!(\"{}\", é);\né",
		kills:   "std::process::abort();", fills: "let mut all = vec![];\nloop {\n    all.push(vec![1u8; 1 << 20]);\n}",
	},
}
