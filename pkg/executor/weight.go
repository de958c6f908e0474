package executor

import "github.com/sandbox-run/sandbox-run/pkg/sandbox"

// Weight is what a run counts for where it is decided how many there may be at a time.
type Weight struct {
	Memory sandbox.Size
	CPUs   float64
}

// copies is how often what is kept of each of the two streams is in our own memory at the most where it has no space on disk: as it was printed,
// and in the document that is made of it.
const copies = 2 * 2

// ownMemory is what a run takes of our own memory where output has space on disk: both streams, the compilers' output, and buffers.
const ownMemory = 2*sandbox.OutputMemory + 2*sandbox.MiB

// Weight is what a request may take, without planning it: the larger of what its phases do, and what we keep of its output meanwhile.
//
// A program may use all of its memory, and is counted for that. A compiler may use far more than it ever does: its limit is there for the one in a
// thousand. It is counted for what compilers of its language are seen to need, unless the request itself says how much it is to have. Otherwise a small
// machine would compile one program at a time and be idle for the rest; what the one in a thousand takes beyond, the server finds out by looking at
// what the machine has left.
func (e *Executor) Weight(req Request) Weight {
	lang := &Language{}
	if l, err := e.lookUp(req.Language); err == nil && req.Language != "" {
		lang = l
	} else if j, err := e.newJob(&req); err == nil {
		lang = j.lang // of a request that is wrong, whoever runs it says so
	}
	m := e.manager.Machine()
	run, _ := lang.Limits.Or(sandbox.DefaultLimits()).Clamp(m)
	compile, _ := lang.Compile.Or(compileDefaults(m)).Clamp(m)
	run, compile = req.Limits.Or(run), req.CompileLimits.Or(compile)
	if req.Lower != nil {
		req.Lower(&run, &compile)
	}
	w := Weight{run.Memory, run.CPUs}
	if lang.Working > 0 {
		most := compile.Memory
		if req.CompileLimits.Memory == 0 {
			most = min(most, lang.Working)
		}
		w.Memory = max(w.Memory, most)
	}
	if req.OutputSpace != nil {
		w.Memory += min(copies*run.Output, ownMemory)
	} else {
		w.Memory += copies * run.Output
	}
	return w
}
