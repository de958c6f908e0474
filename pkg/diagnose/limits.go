package diagnose

import (
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// explainLimit explains a program that a limit has ended. The limit is what the sandbox says; only the place is what the program printed.
func (c *inquiry) explainLimit() *Diagnosis {
	r := c.Result
	l, flags := &r.Limits, "--"
	if r.Phase != "" && r.Phase != sandbox.DefaultPhase {
		flags = "--" + r.Phase + "-"
	}
	d := &Diagnosis{}
	switch r.Verdict {
	case sandbox.VerdictMemoryLimit:
		d.Kind, d.Message = KindMemory, "the memory limit of "+l.Memory.String()
		d.Cause = "the program needs more memory than its limit of " + l.Memory.String()
		if peak := sandbox.Size(r.Metrics.MemoryPeak); peak >= l.Memory {
			d.Cause += "; the peak was the limit, so the real need is not known"
		}
		d.Suggestions = []string{flags + "memory " + flagSize(nextSize(l.Memory)) + ", which probably suffices",
			"less data in memory at a time"}
	case sandbox.VerdictTimeLimit:
		d.Kind, d.Message = KindTime, "the time limit of "+l.Wall.String()
		d.Cause = "the program ran longer than " + l.Wall.String()
		switch cpu := time.Duration(r.Metrics.CPUTime); {
		case cpu < l.Wall/10:
			d.Cause += ", and hardly computed: it probably waited, for input, a lock or the network"
		case cpu > l.Wall*8/10:
			d.Cause += ", and computed all the time"
		}
		d.Suggestions = []string{flags + "timeout " + shortDuration(2*l.Wall)}
	case sandbox.VerdictCPULimit:
		d.Kind, d.Message = KindCPU, "the limit of "+l.CPUTime.String()+" of CPU time"
		d.Cause = "the program used more than " + l.CPUTime.String() + " of CPU time"
		d.Suggestions = []string{"--cpu-time " + shortDuration(2*l.CPUTime)}
	case sandbox.VerdictDiskLimit:
		d.Kind, d.Message = KindDisk, "the limit of the scratch disk"
		d.Cause = "the program filled the scratch disk of " + l.Disk.String() + " and " + strconv.FormatUint(uint64(l.Inodes), 10) + " files"
		d.Suggestions = []string{"--disk " + flagSize(2*l.Disk), stepRemove}
	default:
		return nil
	}
	if c.wasRefused() && d.Kind == KindTime {
		d.Suggestions = append(d.Suggestions, c.hostStep(""))
	}
	d.Docs = d.Kind.docs()
	if d.Kind == KindTime || d.Kind == KindCPU {
		if frames := c.stackAtLimit(); frames != nil {
			d.Frames = orderFrames(frames)
			if f := d.Frames[0]; f.User {
				d.Cause = cut(d.Cause+"; it was "+whereabouts(f), maxMessage)
				c.locate(d, Location{File: f.File, Line: f.Line})
			}
			return d
		}
	}
	// The last trace is where a cell was when it was interrupted.
	for i := range c.thrown {
		if t := &c.thrown[i]; t.at.File != "" {
			d.Frames = orderFrames(t.frames)
			c.locate(d, t.at)
			break
		}
	}
	return d
}

// nextSize is the next power of two of MiB: the need of a program that was ended is not known.
func nextSize(limit sandbox.Size) sandbox.Size {
	next := sandbox.MiB
	for next <= limit && next < 1<<50 {
		next *= 2
	}
	return next
}

// flagSize writes a size as flags take it.
func flagSize(s sandbox.Size) string {
	switch {
	case s >= sandbox.GiB && s%sandbox.GiB == 0:
		return strconv.FormatUint(uint64(s/sandbox.GiB), 10) + "g"
	default:
		return strconv.FormatUint(uint64(s/sandbox.MiB), 10) + "m"
	}
}

func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	return s
}
