package app

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// giving is what a candidate would be found to give.
func giving(tier sandbox.Tier, missing ...sandbox.Gap) Finding {
	return Finding{Isolation: sandbox.Isolation{Tier: tier, Missing: missing}}
}

func TestChoose(t *testing.T) {
	native, oci, runsc, docker, dockerRunsc := Candidate{Native, ""}, Candidate{OCI, ""}, Candidate{OCI, "runsc"}, Candidate{Docker, ""},
		Candidate{Docker, "runsc"}
	gap := sandbox.Gap{Control: sandbox.ControlDisk, State: sandbox.Enforced, Reason: "shared"}
	ordinary, stronger := []Candidate{native, oci, docker}, []Candidate{runsc, dockerRunsc}
	broken := Finding{Err: errors.New("docker: no socket\nmore")}
	away := Finding{Err: &OtherExecutableError{Candidate: docker}}
	for name, c := range map[string]struct {
		want    Want
		all     []Candidate
		machine map[Candidate]Finding
		taken   Candidate
		says    string      // in the reason, or in the error
		looked  []Candidate // at these, in this order, and no others
	}{
		"native serves": {Want{}, ordinary, map[Candidate]Finding{native: giving(sandbox.TierContainer)}, native,
			"auto: native gives container (wanted: container) and starts fastest", []Candidate{native}},
		"native more than asked": {Want{Require: sandbox.TierNamespace}, ordinary,
			map[Candidate]Finding{native: giving(sandbox.TierContainer, gap)}, native, "native gives container (wanted: namespace)",
			[]Candidate{native}},
		"weaker is accepted": {Want{Require: sandbox.TierNamespace}, ordinary, map[Candidate]Finding{native: giving(sandbox.TierNamespace)},
			native, "native gives namespace", []Candidate{native}},
		"native too weak": {Want{}, ordinary, map[Candidate]Finding{native: giving(sandbox.TierNamespace),
			oci: giving(sandbox.TierContainer)}, oci, "auto: oci gives container (wanted: container); native gives namespace",
			[]Candidate{native, oci}},
		"only docker": {Want{}, ordinary, map[Candidate]Finding{native: {Err: errors.New("native: needs Linux")},
			oci: {Err: errors.New("no runc")}, docker: giving(sandbox.TierContainer)}, docker,
			"docker gives container (wanted: container); native can not be used: needs Linux; oci can not be used: no runc",
			[]Candidate{native, oci, docker}},
		"strict": {Want{Strict: true}, ordinary, map[Candidate]Finding{native: giving(sandbox.TierContainer, gap),
			oci: giving(sandbox.TierContainer)}, oci, "wanted: container, with nothing missing); native has 1 gaps", []Candidate{native, oci}},
		"gvisor": {Want{Require: sandbox.TierGVisor}, stronger, map[Candidate]Finding{runsc: giving(sandbox.TierGVisor)}, runsc,
			"auto: oci with runsc gives gvisor", []Candidate{runsc}},
		"gvisor by docker": {Want{Require: sandbox.TierGVisor}, stronger,
			map[Candidate]Finding{runsc: {Err: errors.New("no runsc")}, dockerRunsc: giving(sandbox.TierGVisor)}, dockerRunsc,
			"docker with runsc gives gvisor", stronger},
		"never below": {Want{}, ordinary, map[Candidate]Finding{native: giving(sandbox.TierNamespace), oci: giving(sandbox.TierNone),
			docker: broken}, Candidate{}, `tier "container" is required, this machine gives "namespace"; try: --require namespace, to accept less` +
			"\n  oci gives none\n  docker can not be used: no socket", ordinary},
		"a runtime too weak": {Want{Require: sandbox.TierGVisor}, stronger,
			map[Candidate]Finding{runsc: giving(sandbox.TierContainer), dockerRunsc: broken}, Candidate{},
			`tier "gvisor" is required, this machine gives "container"`, stronger},
		"none works": {Want{}, ordinary, map[Candidate]Finding{native: broken, oci: broken, docker: broken}, Candidate{},
			"no backend gives it here", ordinary},
		"elsewhere": {Want{}, ordinary, map[Candidate]Finding{native: giving(sandbox.TierNamespace), oci: broken, docker: away},
			Candidate{}, "this executable does not have it", ordinary},
		"elsewhere is not asked": {Want{}, ordinary, map[Candidate]Finding{native: giving(sandbox.TierNamespace),
			oci: giving(sandbox.TierContainer), docker: away}, oci, "oci gives container", []Candidate{native, oci}},
	} {
		t.Run(name, func(t *testing.T) {
			var looked []Candidate
			choice, err := choose(c.want, c.all, func(one Candidate) Finding {
				looked = append(looked, one)
				f, ok := c.machine[one]
				if !ok {
					t.Fatalf("%s is looked at", one)
				}
				f.Candidate, f.Isolation.Backend = one, one.Backend
				return f
			})
			if !slices.Equal(looked, c.looked) {
				t.Errorf("looked at %v", looked)
			}
			if c.taken == (Candidate{}) {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Fatalf("%+v, %v", choice, err)
				}
				var elsewhere *OtherExecutableError
				if refused := errors.Is(err, sandbox.ErrRefused); refused == errors.As(err, &elsewhere) {
					t.Errorf("refused: %v: %v", refused, err)
				}
				return
			}
			if err != nil || choice.Candidate != c.taken || !strings.Contains(choice.Why, c.says) {
				t.Errorf("%+v, %v", choice, err)
			}
			if f := c.machine[c.taken]; !f.Isolation.Tier.AtLeast(c.want.tier()) {
				t.Errorf("%s gives %s", c.taken, f.Isolation.Tier)
			}
		})
	}
}

// Auto never chooses the process backend.
func TestCandidates(t *testing.T) {
	for tier, first := range map[sandbox.Tier]string{"": Native, sandbox.TierProcess: Native, sandbox.TierContainer: Native} {
		all := candidates(Want{Require: tier})
		if all[0].Backend != first || slices.ContainsFunc(all, func(c Candidate) bool { return c.Backend == Process }) {
			t.Errorf("%s: %v", tier, all)
		}
	}
	for tier, runtime := range map[sandbox.Tier]string{sandbox.TierGVisor: "runsc", sandbox.TierMicroVM: "kata"} {
		for _, c := range candidates(Want{Require: tier}) {
			if c.Runtime != runtime && c.Backend != Native {
				t.Errorf("%s: %v", tier, c)
			}
		}
	}
}

// With a runtime, only backends that use runtimes are candidates.
func TestCandidatesOfRuntime(t *testing.T) {
	w := Want{Runtime: "crun"}
	for _, c := range candidates(w) {
		if c.Runtime != "crun" || c.Backend == Native {
			t.Error(c)
		}
	}
	if NativeSuffices(w) {
		t.Error("it is ordinary")
	}
}

func TestOpenAuto(t *testing.T) {
	testenv.NeedRoot(t)
	b, choice, err := OpenAuto(t.Context(), Want{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if b.Name() != Native || choice.Backend != Native || !strings.Contains(choice.Why, "starts fastest") {
		t.Errorf("%s: %+v", b.Name(), choice)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func TestDefaultImages(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	images, err := defaultImages([]string{"SANDBOX_RUN_IMAGE=all", "SANDBOX_RUN_IMAGE_PYTHON=python:3.13", "SANDBOX_RUN_IMAGE_RUST=none",
		"SANDBOX_RUN_IMAGE_GO=", "SANDBOX_RUN_IMAGES=/x", "PATH=/bin"})
	if want := map[string]string{"python": "python:3.13", "rust": "none"}; err != nil || !maps.Equal(images, want) {
		t.Errorf("%v, %v", images, err)
	}
}
