package executor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// stackCase is a program that a limit ends.
type stackCase struct {
	name, language, code string
	cpu                  bool   // the limit is that of CPU time
	at                   int    // the line where it was; 0: no stack is shown
	stream               string // with the dump
	has                  string // what else it printed
}

var stackCases = []stackCase{
	{name: "go loop", language: "go", at: 6, stream: "stderr", has: "before", code: `package main

func main() {
	println("before")
	for i := 0; ; i++ {
		spin(i)
	}
}

//go:noinline
func spin(i int) int { return i }
`},
	{name: "go sleep", language: "go", at: 6, stream: "stderr", code: `package main

import "time"

func main() {
	time.Sleep(time.Hour)
}
`},
	{name: "go goroutine", language: "go", at: 5, stream: "stderr", code: `package main

func main() {
	n := 0
	go func() { for { n++ } }()
	select {}
}
`},
	{name: "go cpu", language: "go", cpu: true, at: 6, stream: "stderr", code: `package main

func main() {
	n := 0
	for {
		n++
	}
}
`},
	{name: "java loop", language: "java", at: 4, stream: "stdout", has: "before", code: `public class Main {
  public static void main(String[] args) {
    System.out.println("before");
    for (int i = 0; ; i++) f(i);
  }
  static int f(int i) { return i; }
}
`},
	{name: "java sleep", language: "java", at: 3, stream: "stdout", code: `public class Main {
  public static void main(String[] args) throws Exception {
    Thread.sleep(3600_000);
  }
}
`},
	{name: "java thread", language: "java", at: 3, stream: "stdout", code: `public class Main {
  public static void main(String[] args) throws Exception {
    Thread t = new Thread(() -> { for (;;); }, "busy");
    t.start();
    t.join();
  }
}
`},
	{name: "java cpu", language: "java", cpu: true, at: 3, stream: "stdout", code: `public class Main {
  public static void main(String[] args) throws Exception {
    for (;;);
  }
}
`},
	{name: "python loop", language: "python", at: 3, stream: "stderr", has: "before", code: "print('before')\nwhile True:\n    pass\n"},
	{name: "python sleep", language: "python", at: 4, stream: "stderr", code: "import time\n\ndef wait():\n    time.sleep(3600)\n\nwait()\n"},
	{name: "python thread", language: "python", at: 5, stream: "stderr", code: "import threading\n\ndef busy():\n    while True:\n        pass\n\n" +
		"t = threading.Thread(target=busy)\nt.start()\nt.join()\n"},
	{name: "python cpu", language: "python", cpu: true, at: 2, stream: "stderr", code: "while True:\n    pass\n"},
}

func (c *stackCase) request() Request {
	req := Request{Language: c.language, Code: c.code, Limits: sandbox.Limits{Wall: 2 * time.Second}}
	req.CompileLimits.Wall = 10 * time.Minute
	if c.cpu {
		req.Limits.Wall, req.Limits.CPUTime = 10*time.Minute, time.Second
	}
	return req
}

func TestStackAtLimit(t *testing.T) {
	e := realEngine(t)
	for _, c := range stackCases {
		t.Run(c.name, func(t *testing.T) {
			r, err := e.Execute(t.Context(), c.request())
			if err != nil {
				t.Fatal(err)
			}
			fmt.Printf("=== %s %s %+v %v\n--stdout\n%s\n--stderr\n%s\n--diag %+v\n", c.name, r.Verdict, r.Exit, r.Metrics.WallTime, r.Stdout.Bytes(), r.Stderr.Bytes(), r.Diagnosis)
			_ = strings.Contains
		})
	}
}
