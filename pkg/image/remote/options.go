package remote

import (
	"cmp"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// Options say how an image is fetched. The zero value is ready for use.
type Options struct {
	// Platform to choose where there are several: "linux/arm64", "linux/arm/v7"; empty is Linux on this machine's processor.
	Platform string
	// Insecure allows plain HTTP, for loopback addresses only.
	Insecure bool
	// Parallel is how many layers are downloaded at a time; 0 is 4, and the store takes no more.
	Parallel int
	// Stall is how long a registry may send nothing before the connection is given up; 0 is 30 seconds. An answer
	// other than a layer has twice as long in all.
	Stall time.Duration
	// Attempts is how often something is tried that may work the next time; 0 is 5. A download that makes progress
	// begins to count anew.
	Attempts int
	// Backoff is the wait before the second attempt; each further one is twice as long, up to 32 times. 0 is half a second.
	Backoff time.Duration
	// CertDirs hold the certificates of private registries, HOST[:PORT]/ca.crt; nil are Docker's and Podman's.
	CertDirs []string
	// UserAgent precedes the registry library's own in requests; empty is "sandbox-run".
	UserAgent string
	// Progress is told what happens, by one goroutine at a time, and should return soon: downloads wait for it.
	Progress func(Progress)
}

func (o Options) complete() (Options, error) {
	for _, n := range []struct {
		name  string
		value int64
	}{
		{"Parallel", int64(o.Parallel)}, {"Attempts", int64(o.Attempts)},
		{"Stall", int64(o.Stall)}, {"Backoff", int64(o.Backoff)},
	} {
		if n.value < 0 {
			return o, fmt.Errorf("pull: %s is negative", n.name)
		}
	}
	o.Platform = cmp.Or(o.Platform, "linux/"+runtime.GOARCH)
	o.Parallel = cmp.Or(o.Parallel, 4)
	o.Stall = cmp.Or(o.Stall, 30*time.Second)
	o.Attempts = cmp.Or(o.Attempts, 5)
	o.Backoff = cmp.Or(o.Backoff, 500*time.Millisecond)
	o.UserAgent = cmp.Or(o.UserAgent, "sandbox-run")
	if tell := o.Progress; tell != nil {
		var mu sync.Mutex // Update has several images under way
		o.Progress = func(p Progress) {
			mu.Lock()
			defer mu.Unlock()
			tell(p)
		}
	}
	if o.CertDirs == nil {
		o.CertDirs = defaultCertDirs()
	}
	return o, nil
}

// State is how far a layer, or the whole image, has come.
type State string

// The states. An image goes resolving, (downloading, unpacking,) done or failed. A layer goes waiting, downloading (and
// retrying, and back), downloaded; one that the store has is present from the start.
const (
	Resolving   State = "resolving"
	Waiting     State = "waiting"
	Present     State = "present"
	Downloading State = "downloading"
	Retrying    State = "retrying"
	Downloaded  State = "downloaded"
	Unpacking   State = "unpacking"
	Done        State = "done"
	Failed      State = "failed"
)

// Progress is the state of a pull at one moment: of one layer, or with no Layer, of the image. All layers are announced, in order and with
// their sizes, before the first byte of any arrives, so that a reader knows from the beginning how much there is to come.
//
//	resolving                         image
//	waiting, present                  every layer once; Layers is how many there are
//	downloading                       image
//	downloading, retrying, …          layers, several at a time; Done grows, and begins above 0 where an earlier pull was cut
//	unpacking, done                   image
type Progress struct {
	Reference string `json:"reference"`        // normalised
	Digest    string `json:"digest,omitempty"` // of the manifest, once it is known
	State     State  `json:"state"`

	Layer  string `json:"layer,omitempty"` // sha256:…
	Index  int    `json:"index"`           // of the layer, from 0, lowest first
	Layers int    `json:"layers"`          // how many the image has
	Done   int64  `json:"done"`            // bytes; of the whole image where there is no Layer, those present included
	Total  int64  `json:"total"`

	// Why a layer is Retrying, and for how long it waits.
	Reason string        `json:"reason,omitempty"`
	Wait   time.Duration `json:"wait,omitempty"`
}

// reportEvery is how often the bytes of a layer are reported; changes of state always are.
const reportEvery = 50 * time.Millisecond

// reporter keeps the sums and hands out Progress.
type reporter struct {
	tell func(Progress)

	mu     sync.Mutex
	base   Progress // what all reports have in common
	layers []layerReport
}

type layerReport struct {
	Progress
	last time.Time
}

func newReporter(reference string, tell func(Progress)) *reporter {
	return &reporter{tell: tell, base: Progress{Reference: reference}}
}

// announce lists the layers; state says of each whether the store has it.
func (r *reporter) announce(digest string, layers []layerReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.base.Digest = digest
	r.base.Layers = len(layers)
	r.layers = layers
	for i := range r.layers {
		l := &r.layers[i].Progress
		l.Reference, l.Digest, l.Index, l.Layers = r.base.Reference, digest, i, len(layers)
		r.base.Total += l.Total
		r.base.Done += l.Done
	}
	for i := range r.layers {
		r.send(r.layers[i].Progress)
	}
	r.base.State = Downloading
	r.next()
}

// next reports how far the image is: unpacking, when all layers are here.
func (r *reporter) next() {
	here := 0
	for i := range r.layers {
		if s := r.layers[i].State; s == Present || s == Downloaded {
			here++
		}
	}
	if here == len(r.layers) {
		r.base.State = Unpacking
	}
	r.send(r.base)
}

// image reports a state of the whole.
func (r *reporter) image(state State, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.base.State, r.base.Reason = state, reason
	r.send(r.base)
}

// layer reports a state of one layer. done is where its download stands.
func (r *reporter) layer(index int, state State, done int64, reason string, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := &r.layers[index]
	r.base.Done += done - l.Done
	changed := l.State != state
	l.State, l.Done, l.Reason, l.Wait = state, done, reason, wait
	if now := time.Now(); changed || now.Sub(l.last) >= reportEvery {
		l.last = now
		r.send(l.Progress)
	}
	if changed && state == Downloaded {
		r.next()
	}
}

func (r *reporter) send(p Progress) {
	if r.tell != nil {
		r.tell(p)
	}
}
