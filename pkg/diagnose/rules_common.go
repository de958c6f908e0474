package diagnose

import (
	"net/netip"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Steps that several rules have.
const (
	stepWritable = "write below " + sandbox.WorkspaceDir + ", " + sandbox.TmpDir + " or $HOME"
	stepInput    = "give standard input: a pipe, or the field stdin of a request"
	stepHosts    = "--allow HOST for each host that the program needs, or --network learn, which lists them"
	stepRemove   = "--out FILE copies results to the host after the run; remove what is not needed"
	stepIn       = "copy the file into the sandbox: --in FILE; the working directory is " + sandbox.WorkspaceDir
)

// commonRules apply to all languages, after their own: messages of the system.
var commonRules = []rule{
	{kind: KindNetwork, pattern: "Failed to resolve '*'", explain: blockedHost},
	{kind: KindNetwork, pattern: "EAI_AGAIN *", explain: blockedHost},
	{kind: KindNetwork, pattern: "ENOTFOUND *", explain: blockedHost},
	{kind: KindNetwork, pattern: "dial tcp: lookup * ", explain: blockedHost},
	{kind: KindNetwork, class: "UnknownHostException", pattern: "*: ", explain: blockedHost},
	{kind: KindNetwork, class: "UnknownHostException", pattern: "*", explain: blockedHost},
	{kind: KindNetwork, pattern: "Could not resolve host: *", explain: blockedHost},
	{kind: KindNetwork, pattern: "Temporary failure in name resolution", explain: blockedName},
	{kind: KindNetwork, pattern: "Name or service not known", explain: blockedName},
	{kind: KindNetwork, pattern: "ENETUNREACH *:", explain: blockedHost},
	{kind: KindNetwork, pattern: "dial tcp *:", explain: unreachable},
	{kind: KindNetwork, pattern: "Network is unreachable", explain: unreachable},
	{kind: KindReadOnly, pattern: "EROFS: read-only file system, * '*'", explain: readOnlySecond},
	{kind: KindReadOnly, pattern: "Read-only file system: '*'", explain: readOnly},
	{kind: KindReadOnly, pattern: "*: Read-only file system", explain: readOnly},
	{kind: KindReadOnly, pattern: "open *: read-only file system", explain: readOnly},
	{kind: KindReadOnly, pattern: "ead-only file system", cause: "the sandbox shows this path read-only", suggest: []string{stepWritable}},
	{kind: KindProcesses, pattern: "can't start new thread", explain: processLimit},
	{kind: KindProcesses, pattern: "esource temporarily unavailable", explain: processLimit},
	{kind: KindProcesses, pattern: "spawn * EAGAIN", explain: processLimit},
	{kind: KindProcesses, pattern: "unable to create native thread", explain: processLimit},
	{kind: KindOpenFiles, pattern: "oo many open files", explain: openFiles},
	{kind: KindDisk, pattern: "o space left on device", explain: diskFull},
	{kind: KindPermission, pattern: "ermission denied", explain: permission},
	{kind: KindPermission, pattern: "peration not permitted", cause: "the sandbox does not permit this operation"},
	{kind: KindFile, pattern: "ENOENT: no such file or directory, * '*'", explain: missingFileSecond},
	{kind: KindFile, pattern: "open *: no such file or directory", explain: missingFile},
	{kind: KindFile, pattern: "*: No such file or directory", explain: missingFile},
	{kind: KindFile, class: "NoSuchFileException", pattern: "*", explain: missingFile},
	{kind: KindFile, pattern: "kind: NotFound, message", cause: "the file is not in the sandbox", suggest: []string{stepIn}},
	{kind: KindMemory, class: "MemoryError|OutOfMemoryError", explain: memoryError},
}

// IsVague reports whether the diagnosis says that a host is not allowed, and can not say which.
func (d *Diagnosis) IsVague() bool { return len(d.Suggestions) == 1 && d.Suggestions[0] == stepHosts }

// applyText explains a program that reported its error in words of its own, by the messages of the system in its last lines.
func (c *inquiry) applyText() *Diagnosis {
	const last = 10
	for i := len(c.stderr) - 1; i >= max(0, len(c.stderr)-last); i-- {
		c.thrown = []thrown{{text: c.stderr[i]}}
		for j := range commonRules {
			if r := &commonRules[j]; r.kind != KindFile && r.kind != KindPermission { // a path alone is no cause
				if d := c.apply(r, &c.thrown[0]); d != nil {
					return d
				}
			}
		}
	}
	c.thrown = nil
	return nil
}

// wasRefused reports whether names or connections of the run were refused, or failed without a network.
func (c *inquiry) wasRefused() bool {
	for _, v := range c.Result.Violations {
		if v.Kind == sandbox.ViolationNetwork {
			return true
		}
	}
	return false
}

// hostStep is the flag that allows a host. Violations name the exact rule where a policy refused it.
func (c *inquiry) hostStep(host string) string {
	for _, v := range c.Result.Violations {
		if v.Kind == sandbox.ViolationNetwork && v.Name != "" && v.Allow != "" && (host == "" || strings.Contains(v.Detail+v.Name, host)) {
			return v.Allow + ", which allows it"
		}
	}
	if host == "" {
		return stepHosts
	}
	return "--allow " + sandbox.ShellQuote(host) + ", which allows it"
}

func blockedHost(c *inquiry, _ *thrown, m []string) *answer {
	host := strings.Trim(m[0], " '\"")
	if name, _, ok := strings.Cut(host, " "); ok {
		host = name
	}
	if at := strings.LastIndexByte(host, ':'); at > 0 && !strings.Contains(host[:at], ":") {
		host = host[:at]
	}
	if !isName(host, ".-:") {
		return blockedName(c, nil, nil)
	}
	if !c.wasRefused() {
		return answered(KindNetwork, "the host "+host+" has no address", "check its name")
	}
	return answered(KindNetwork, "the sandbox may not reach "+host, c.hostStep(host))
}

// blockedName finds the host of a message that does not name it, in the program's own code.
func blockedName(c *inquiry, _ *thrown, _ []string) *answer {
	if !c.wasRefused() {
		return answered(KindNetwork, "the name of a host has no address", "check the name of the host")
	}
	if host := c.hostInSource(); host != "" {
		return answered(KindNetwork, "the sandbox may not reach a host, probably "+host, c.hostStep(host))
	}
	return answered(KindNetwork, "the sandbox may not reach the host", c.hostStep(""))
}

func unreachable(c *inquiry, t *thrown, m []string) *answer {
	if !c.wasRefused() {
		return nil
	}
	if len(m) > 0 {
		if _, err := netip.ParseAddr(m[0]); err == nil {
			return blockedHost(c, t, m)
		}
	}
	return blockedName(c, t, nil)
}

// hostInSource is the host of the only URL in the user's files; "" if there are several.
func (c *inquiry) hostInSource() (host string) {
	for _, file := range c.Files[:min(len(c.Files), maxSearched)] {
		text, _ := c.source(file)
		for i := 0; i < 50; i++ {
			_, rest, ok := strings.Cut(text, "://")
			if !ok {
				break
			}
			text = rest
			end := strings.IndexFunc(rest, func(r rune) bool { return r > 0x7e || !isLetter(r) && (r < '0' || r > '9') && r != '.' && r != '-' })
			if end < 0 {
				end = len(rest)
			}
			name := rest[:end]
			if !strings.Contains(name, ".") || !isName(name, ".-") || name == host {
				continue
			}
			if host != "" {
				return ""
			}
			host = name
		}
	}
	return host
}

func readOnlySecond(c *inquiry, t *thrown, m []string) *answer { return readOnly(c, t, m[1:]) }

func readOnly(_ *inquiry, _ *thrown, m []string) *answer {
	name := m[0]
	if i := strings.LastIndex(name, ": "); i >= 0 {
		name = name[i+2:]
	}
	if strings.Trim(name, " '\"‘’") == "" {
		return answered(KindReadOnly, "the sandbox shows this path read-only", stepWritable)
	}
	return answered(KindReadOnly, "the sandbox shows "+strings.Trim(name, " '\"‘’")+" read-only", stepWritable)
}

func permission(c *inquiry, t *thrown, _ []string) *answer {
	if parts, ok := capture("'*'", t.text); ok && strings.HasPrefix(parts[0], "/") && !isScratch(parts[0]) {
		return answered(KindPermission, "the user of the sandbox may not change "+parts[0], stepWritable)
	}
	return answered(KindPermission, "the user of the sandbox, who is not root, has no permission for this")
}

func isScratch(p string) bool {
	for _, dir := range sandbox.ScratchDirs() {
		if p == dir || strings.HasPrefix(p, dir+"/") {
			return true
		}
	}
	return false
}

func missingFileSecond(c *inquiry, t *thrown, m []string) *answer { return missingFile(c, t, m[1:]) }

func missingFile(c *inquiry, _ *thrown, m []string) *answer {
	name := strings.Trim(m[0], " '\"‘’")
	if i := strings.LastIndex(name, ": "); i >= 0 {
		name = name[i+2:]
	}
	if name == "" || len(name) > 200 {
		return nil
	}
	inside := strings.TrimPrefix(strings.TrimPrefix(name, sandbox.WorkspaceDir+"/"), "./")
	if similar := near(inside, c.Files); similar != "" {
		return answered(KindFile, "the file "+name+" is not in the sandbox, and "+similar+" is", didYouMean(similar))
	}
	return answered(KindFile, "the file "+name+" is not in the sandbox", stepIn)
}

func processLimit(c *inquiry, t *thrown, _ []string) *answer {
	hit := false
	for _, v := range c.Result.Violations {
		hit = hit || v.Kind == sandbox.ViolationPids
	}
	if !hit {
		return nil
	}
	return answered(KindProcesses, "the sandbox allows "+number(c.Result.Limits.Processes)+" processes and threads at a time",
		"--pids "+number(2*c.Result.Limits.Processes)+", or fewer processes at a time")
}

func openFiles(c *inquiry, _ *thrown, _ []string) *answer {
	return answered(KindOpenFiles, "a process of the sandbox may have "+number(c.Result.Limits.OpenFiles)+" open files",
		"close files after their use", "--open-files "+number(2*c.Result.Limits.OpenFiles))
}

func diskFull(c *inquiry, _ *thrown, _ []string) *answer {
	l := &c.Result.Limits
	return answered(KindDisk, "the program filled the scratch disk of "+l.Disk.String()+" and "+number(l.Inodes)+" files",
		"--disk "+flagSize(2*l.Disk), stepRemove)
}

func memoryError(c *inquiry, _ *thrown, _ []string) *answer {
	return answered(KindMemory, "the program asked for more memory than its limit of "+c.Result.Limits.Memory.String()+" has",
		"--memory "+flagSize(nextSize(c.Result.Limits.Memory)))
}
