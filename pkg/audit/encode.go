package audit

import (
	"fmt"
	"math"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// encoder writes an entry as JSON. It is ours because a command writes a single entry: before its first one,
// encoding/json spends more time on learning the types than all the rest of Append takes. A test compares the two.
type encoder struct {
	out []byte
	bad error // a number that JSON does not have
}

// key begins a member of the object.
func (b *encoder) key(name string) {
	if b.out[len(b.out)-1] != '{' {
		b.out = append(b.out, ',')
	}
	b.out = append(b.out, '"')
	b.out = append(b.out, name...)
	b.out = append(b.out, '"', ':')
}

func (b *encoder) object(name string, fill func()) {
	b.key(name)
	b.out = append(b.out, '{')
	fill()
	b.out = append(b.out, '}')
}

func (b *encoder) text(name, value string) {
	b.key(name)
	b.out = appendText(b.out, value)
}

// optional leaves out what is empty.
func (b *encoder) optional(name, value string) {
	if value != "" {
		b.text(name, value)
	}
}

func (b *encoder) number(name string, n int64) {
	b.key(name)
	b.out = strconv.AppendInt(b.out, n, 10)
}

func (b *encoder) count(name string, n uint64) {
	b.key(name)
	b.out = strconv.AppendUint(b.out, n, 10)
}

func (b *encoder) float(name string, f float64) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		b.bad = fmt.Errorf("encode the entry: %s is %v", name, f)
		return
	}
	b.key(name)
	b.out = strconv.AppendFloat(b.out, f, 'f', -1, 64)
}

func (b *encoder) seconds(name string, d time.Duration) { b.float(name, d.Seconds()) }

const hexDigits = "0123456789abcdef"

// appendText writes a string in plain ASCII: no text can break a line, move a cursor or reorder what is shown. What is
// no UTF-8 becomes U+FFFD, as in encoding/json.
func appendText(out []byte, s string) []byte {
	out = append(out, '"')
	for len(s) > 0 {
		if c := s[0]; c < utf8.RuneSelf {
			s = s[1:]
			switch {
			case c == '"' || c == '\\':
				out = append(out, '\\', c)
			case c == '\n':
				out = append(out, '\\', 'n')
			case c == '\t':
				out = append(out, '\\', 't')
			case c < 0x20 || c == 0x7f:
				out = appendUnit(out, uint16(c))
			default:
				out = append(out, c)
			}
			continue
		}
		r, size := utf8.DecodeRuneInString(s)
		s = s[size:]
		if r > 0xffff {
			high, low := utf16.EncodeRune(r)
			out = appendUnit(appendUnit(out, uint16(high)), uint16(low))
			continue
		}
		out = appendUnit(out, uint16(r))
	}
	return append(out, '"')
}

func appendUnit(out []byte, u uint16) []byte {
	return append(out, '\\', 'u', hexDigits[u>>12], hexDigits[u>>8&15], hexDigits[u>>4&15], hexDigits[u&15])
}

// entry writes all but the hash and the brace that ends it.
func (b *encoder) entry(e *Entry) {
	b.out = append(b.out, '{')
	b.count("seq", e.Seq)
	b.text("time", e.Time.Format(time.RFC3339Nano))
	b.text("kind", string(e.Kind))
	b.optional("run", e.Run)
	b.object("who", func() {
		b.number("uid", int64(e.Who.UID))
		b.optional("user", e.Who.User)
		b.number("pid", int64(e.Who.PID))
		b.optional("door", string(e.Who.Door))
		b.optional("key", e.Who.Key)
	})
	b.optional("language", e.Language)
	b.optional("language_version", e.Version)
	if len(e.Command) > 0 {
		b.key("command")
		for i, a := range e.Command {
			b.out = append(b.out, "[,"[min(i, 1)])
			b.out = appendText(b.out, a)
		}
		b.out = append(b.out, ']')
	}
	b.optional("code_sha256", e.CodeSHA256)
	b.optional("input_sha256", e.InputSHA256)
	b.optional("code", e.Code)
	b.optional("code_encoding", e.CodeEncoding)
	b.optional("code_omitted", e.CodeOmitted)
	b.object("policy", func() {
		b.optional("network", string(e.Policy.Network))
		b.optional("require", string(e.Policy.Require))
		b.optional("tier", string(e.Policy.Tier))
		b.optional("backend", e.Policy.Backend)
		b.optional("image", e.Policy.Image)
		b.optional("image_digest", e.Policy.ImageDigest)
		if l := e.Policy.Limits; l != nil {
			b.object("limits", func() { b.limits(l) })
		}
	})
	b.optional("verdict", string(e.Verdict))
	b.number("exit_code", int64(e.ExitCode))
	b.optional("reason", e.Reason)
	if e.Count != 0 {
		b.count("count", e.Count)
	}
	b.optional("error", e.Error)
	if m := e.Metrics; m != nil {
		b.object("metrics", func() { b.metrics(m) })
	}
	if r := e.Repaired; r != nil {
		b.object("repaired", func() { b.repaired(r) })
	}
	if p := e.Pruned; p != nil {
		b.object("pruned", func() {
			b.count("to", p.To)
			b.text("hash", p.Hash)
		})
	}
	b.text("prev", e.Prev)
}

func (b *encoder) limits(l *sandbox.Limits) {
	b.seconds("timeout", l.Wall)
	b.seconds("grace", l.Grace)
	b.float("cpus", l.CPUs)
	if l.CPUTime != 0 {
		b.seconds("cpu_time", l.CPUTime)
	}
	b.count("memory", uint64(l.Memory))
	b.count("disk", uint64(l.Disk))
	b.number("inodes", int64(l.Inodes))
	b.number("pids", int64(l.Processes))
	b.number("open_files", int64(l.OpenFiles))
	b.count("output_limit", uint64(l.Output))
}

func (b *encoder) metrics(m *monitor.Metrics) {
	b.seconds("wall_time", m.WallTime.Duration())
	b.seconds("cpu_time", m.CPUTime.Duration())
	b.seconds("cpu_user", m.CPUUser.Duration())
	b.seconds("cpu_system", m.CPUSystem.Duration())
	b.count("memory_peak", m.MemoryPeak)
	b.count("io_read_bytes", m.IORead)
	b.count("io_write_bytes", m.IOWrite)
	b.number("processes_peak", int64(m.ProcessesPeak))
	b.count("oom_kills", m.OOMKills)
	b.seconds("throttled_time", m.ThrottledTime.Duration())
	b.seconds("startup_time", m.StartupTime.Duration())
	b.float("cpu_percent", m.CPUPercent)
	for _, c := range []struct {
		name string
		n    uint64
	}{
		{"memory_current", m.MemoryCurrent}, {"processes_current", uint64(max(m.ProcessesCurrent, 0))},
		{"process_limit_hits", m.ProcessLimitHits}, {"disk_used_bytes", m.DiskUsed},
	} {
		if c.n != 0 {
			b.count(c.name, c.n)
		}
	}
	if m.DiskFull {
		b.key("disk_full")
		b.out = append(b.out, "true"...)
	}
}

func (b *encoder) repaired(r *Repaired) {
	if len(r.Torn) > 0 {
		b.key("torn")
		for i, t := range r.Torn {
			b.out = append(b.out, "[,"[min(i, 1)], '{')
			b.number("bytes", int64(t.Bytes))
			b.text("sha256", t.SHA256)
			b.out = append(b.out, '}')
		}
		b.out = append(b.out, ']')
	}
	if r.MissingFrom != 0 {
		b.count("missing_from", r.MissingFrom)
	}
	if r.MissingTo != 0 {
		b.count("missing_to", r.MissingTo)
	}
	b.optional("head", r.Head)
}
