package remote

import (
	"cmp"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// Options configure Pull and Update. The zero value is ready for use.
type Options struct {
	// Platform selects an image of an index: "linux/arm64", "linux/arm/v7". Empty is Linux on this machine's processor.
	Platform string
	// Insecure allows plain HTTP, for loopback addresses only.
	Insecure bool
	// Parallel is the number of concurrent downloads of layers; 0 is 4, which is also the store's maximum.
	Parallel int
	// Stall is the time without data after which a connection is closed; 0 is 30 seconds. An answer other than a layer has to be
	// complete within twice that time.
	Stall time.Duration
	// Attempts is the number of attempts after temporary errors; 0 is 5. Progress of a download resets the count.
	Attempts int
	// Backoff is the wait before the second attempt; each further one is twice as long, up to 32 times. 0 is half a second.
	Backoff time.Duration
	// CertDirs hold the certificates of private registries, HOST[:PORT]/ca.crt; nil is the directories of Docker and Podman.
	CertDirs []string
	// UserAgent precedes the registry library's own User-Agent; empty is "sandbox-run".
	UserAgent string
	// Progress receives every change of state. One goroutine at a time calls it, and downloads wait until it returns.
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
		var mu sync.Mutex // Update resolves several images at once
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

// State is the state of a layer's or an image's pull.
type State string

// The states. An image is resolving, downloading, unpacking, then done or failed. A layer is waiting, downloading or retrying, then
// downloaded. A layer that the store has is present from the start.
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

// Progress is the state of one layer or, without Layer, of the image. Pull announces all layers in order with their sizes before it
// downloads the first byte, so that the total is known from the beginning.
//
//	resolving                         image
//	waiting, present                  every layer once; Layers is how many there are
//	downloading                       image
//	downloading, retrying, …          layers, several at a time; Done starts above 0 after an interrupted pull
//	unpacking, done                   image
type Progress struct {
	Reference string `json:"reference"`        // normalised
	Digest    string `json:"digest,omitempty"` // of the manifest, once it is known
	State     State  `json:"state"`

	Layer  string `json:"layer,omitempty"` // sha256:…
	Index  int    `json:"index"`           // of the layer, from 0, lowest first
	Layers int    `json:"layers"`          // number of the image's layers
	Done   int64  `json:"done"`            // bytes; without Layer of the whole image, including present layers
	Total  int64  `json:"total"`

	// Reason and Wait are the error of a layer that is Retrying, and the time until the next attempt.
	Reason string        `json:"reason,omitempty"`
	Wait   time.Duration `json:"wait,omitempty"`
}

// reportEvery is the shortest time between two reports of a layer's bytes. Changes of state are always reported.
const reportEvery = 50 * time.Millisecond

// reporter keeps the totals of a pull and calls Options.Progress.
type reporter struct {
	tell func(Progress)

	mu     sync.Mutex
	base   Progress // of the image
	layers []layerReport
}

type layerReport struct {
	Progress
	last time.Time
}

func newReporter(reference string, tell func(Progress)) *reporter {
	return &reporter{tell: tell, base: Progress{Reference: reference}}
}

// announce reports every layer as waiting or present, then the image as downloading.
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
	r.reportImage()
}

// reportImage reports the image as unpacking if all layers have arrived. The caller holds mu.
func (r *reporter) reportImage() {
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

// image sets and reports the state of the image.
func (r *reporter) image(state State, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.base.State, r.base.Reason = state, reason
	r.send(r.base)
}

// layer sets and reports the state of one layer. done is the number of its bytes that have arrived.
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
		r.reportImage()
	}
}

func (r *reporter) send(p Progress) {
	if r.tell != nil {
		r.tell(p)
	}
}
