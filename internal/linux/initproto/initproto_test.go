package initproto

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	descriptor = rapid.IntRange(-1, MaxDescriptors-1)
	text       = rapid.Custom(func(t *rapid.T) string { return string(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "bytes")) })
	texts      = rapid.SliceOfN(text, 0, 6)
)

func drawSetup(t *rapid.T) *Setup {
	return &Setup{
		Namespaced: rapid.Bool().Draw(t, "n"), HostMountNS: rapid.Uint64().Draw(t, "m"), HostUserNS: rapid.Uint64().Draw(t, "u"),
		Hostname: text.Draw(t, "h"),
		Root:     descriptor.Draw(t, "root"), Masked: texts.Draw(t, "masked"), Hidden: texts.Draw(t, "hidden"), ReadOnly: texts.Draw(t, "ro"),
		Scratch: descriptor.Draw(t, "s"),
		Binds:   rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Bind { return Bind{text.Draw(t, "f"), text.Draw(t, "t")} }), 0, 4).Draw(t, "binds"),
		Volumes: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Volume {
			return Volume{descriptor.Draw(t, "f"), text.Draw(t, "t"), rapid.Bool().Draw(t, "b")}
		}), 0, 4).Draw(t, "volumes"),
		ShmSize: rapid.Uint64().Draw(t, "shm"),
	}
}

func drawRuleset(t *rapid.T) Ruleset {
	rule := rapid.Custom(func(t *rapid.T) Rule { return Rule{text.Draw(t, "p"), rapid.Uint64().Draw(t, "a")} })
	return Ruleset{
		Rules: rapid.SliceOfN(rule, 0, 4).Draw(t, "landlock"),
		FS:    rapid.Uint64().Draw(t, "fs"), Net: rapid.Uint64().Draw(t, "net"), Scoped: rapid.Uint64().Draw(t, "scoped"),
	}
}

func drawExec(t *rapid.T) *Exec {
	return &Exec{
		ID: rapid.Uint64().Draw(t, "id"), Paths: texts.Draw(t, "paths"), Args: texts.Draw(t, "args"), Env: texts.Draw(t, "env"),
		Dir: text.Draw(t, "dir"),
		UID: rapid.Uint32().Draw(t, "uid"), GID: rapid.Uint32().Draw(t, "gid"),
		Rlimits: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Rlimit {
			return Rlimit{rapid.Uint32().Draw(t, "r"), rapid.Uint64().Draw(t, "s"), rapid.Uint64().Draw(t, "m")}
		}), 0, 4).Draw(t, "rlimits"),
		Seccomp:  rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(t, "seccomp"),
		Landlock: drawRuleset(t),
		Loopback: rapid.Bool().Draw(t, "lo"), Stdio: [3]int{descriptor.Draw(t, "0"), descriptor.Draw(t, "1"), descriptor.Draw(t, "2")},
		Terminal: rapid.Bool().Draw(t, "tty"), Merged: rapid.Bool().Draw(t, "merged"), Socket: rapid.Bool().Draw(t, "socket"),
		Rows: rapid.Uint16().Draw(t, "rows"), Cols: rapid.Uint16().Draw(t, "cols"),
		Cgroups:     rapid.SliceOfN(descriptor, 0, 5).Draw(t, "cgroups"),
		NewCgroupNS: rapid.Bool().Draw(t, "cg"), NewUserNS: rapid.Bool().Draw(t, "user"), Relay: text.Draw(t, "console"),
		Probe: rapid.Bool().Draw(t, "probe"), Forbidden: text.Draw(t, "forbidden"),
	}
}

func drawMessage(t *rapid.T) Message {
	switch rapid.IntRange(0, 10).Draw(t, "kind") {
	case 0:
		return drawSetup(t)
	case 1:
		return drawExec(t)
	case 2:
		return &Signal{rapid.Uint64().Draw(t, "id"), rapid.Bool().Draw(t, "all"), rapid.Uint32().Draw(t, "num")}
	case 3:
		return &Started{rapid.Uint64().Draw(t, "id"), rapid.Uint32().Draw(t, "pid"), rapid.Uint64().Draw(t, "at")}
	case 4:
		return &Exited{
			ID: rapid.Uint64().Draw(t, "id"), Status: rapid.Uint32().Draw(t, "status"), At: rapid.Uint64().Draw(t, "at"),
			NoRoutes: rapid.Uint64().Draw(t, "routes"), MaxRSS: rapid.Uint64().Draw(t, "rss"),
		}
	case 5:
		return &Failed{rapid.Uint64().Draw(t, "id"), Stage(rapid.Uint32().Draw(t, "stage")), rapid.Uint32().Draw(t, "errno"),
			text.Draw(t, "detail")}
	case 6:
		return &Listener{rapid.Uint64().Draw(t, "id")}
	case 7:
		return &Expect{
			ID: rapid.Uint64().Draw(t, "id"), Landlock: drawRuleset(t), Loopback: rapid.Bool().Draw(t, "lo"),
		}
	case 8:
		return &Expected{rapid.Uint64().Draw(t, "id")}
	case 9:
		return &Adopt{rapid.Uint64().Draw(t, "id"), rapid.Uint32().Draw(t, "pid")}
	}
	return &Ready{}
}

// Any messages, sent one after another and received in any pieces, arrive unchanged.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream []byte
		var sent []Message
		var counts, lengths, firsts []int
		total := 0
		for range rapid.IntRange(1, 5).Draw(t, "messages") {
			m := drawMessage(t)
			n := rapid.IntRange(0, MaxDescriptors).Draw(t, "descriptors")
			frame := Encode(m)
			Accompany(frame, n)
			stream, sent, counts, lengths, firsts = append(stream, frame...), append(sent, m), append(counts, n), append(lengths, len(frame)),
				append(firsts, total)
			total += n
		}
		var in Inbox[int]
		var got []any
		next, starts := 0, 0 // the descriptors of a frame come with its first byte
		frames := 0
		for at := 0; at < len(stream); {
			n := min(len(stream)-at, rapid.IntRange(1, 64).Draw(t, "piece"))
			var fds []int
			for frames < len(sent) && starts < at+n {
				for range counts[frames] {
					fds, next = append(fds, next), next+1
				}
				starts += lengths[frames]
				frames++
			}
			in.Put(stream[at:at+n], fds...)
			at += n
			for {
				m, fds, err := in.Take()
				if err != nil {
					t.Fatal(err)
				}
				if m == nil {
					break
				}
				if len(fds) != counts[len(got)] || len(fds) > 0 && fds[0] != firsts[len(got)] {
					t.Fatalf("descriptors %v, want %d from %d on", fds, counts[len(got)], firsts[len(got)])
				}
				got = append(got, m)
			}
		}
		if len(got) != len(sent) || len(in.data) != 0 || len(in.descriptors) != 0 {
			t.Fatalf("%d of %d messages, %d bytes and %d descriptors over", len(got), len(sent), len(in.data), len(in.descriptors))
		}
		for i := range sent {
			if diff := cmp.Diff(any(sent[i]), got[i], cmpopts.EquateEmpty()); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

// A message without its last byte, or with one too many, is malformed.
func TestTruncated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := Encode(drawMessage(t))[HeaderSize:]
		cut := rapid.IntRange(0, len(body)-1).Draw(t, "cut")
		if m, err := Decode(body[:cut]); !errors.Is(err, ErrMalformed) {
			t.Fatalf("%d of %d bytes are %+v (%v)", cut, len(body), m, err)
		}
		if m, err := Decode(append(bytes.Clone(body), 0)); !errors.Is(err, ErrMalformed) {
			t.Fatalf("with a byte more: %+v (%v)", m, err)
		}
	})
}

// Every field is on the wire: changing one changes the frame.
func TestEveryFieldTravels(t *testing.T) {
	for _, m := range []Message{&Setup{}, &Exec{}, &Signal{}, &Started{}, &Exited{}, &Failed{}, &Expect{}, &Expected{}, &Adopt{}} {
		plain := Encode(m)
		for _, path := range fieldsOf(t, reflect.TypeOf(m).Elem()) {
			changed := reflect.New(reflect.TypeOf(m).Elem())
			f := changed.Elem().FieldByIndex(path)
			switch f.Kind() {
			case reflect.Bool:
				f.SetBool(true)
			case reflect.String:
				f.SetString("x")
			case reflect.Int:
				f.SetInt(1)
			case reflect.Uint16, reflect.Uint32, reflect.Uint64:
				f.SetUint(1)
			case reflect.Slice:
				f.Set(reflect.MakeSlice(f.Type(), 1, 1))
			case reflect.Array:
				f.Index(2).SetInt(1)
			default:
				t.Fatalf("%s", f.Kind())
			}
			if bytes.Equal(Encode(changed.Interface().(Message)), plain) {
				t.Errorf("%T: field %v is not sent", m, path)
			}
		}
	}
}

// fieldsOf are the indices of all fields, including those of nested structs.
func fieldsOf(t *testing.T, message reflect.Type) (paths [][]int) {
	t.Helper()
	for i := range message.NumField() {
		if inner := message.Field(i).Type; inner.Kind() == reflect.Struct {
			for _, path := range fieldsOf(t, inner) {
				paths = append(paths, append([]int{i}, path...))
			}
			continue
		}
		paths = append(paths, []int{i})
	}
	return paths
}

func TestVersionMismatch(t *testing.T) {
	frame := Encode(&Setup{Root: -1, Scratch: -1})
	if frame[HeaderSize+1] != Version {
		t.Fatalf("the version is not where it was: % x", frame)
	}
	frame[HeaderSize+1]++
	if m, err := Decode(frame[HeaderSize:]); !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), "different builds") {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err := Decode(frame[HeaderSize : HeaderSize+1]); err != ErrMalformed { //nolint:errorlint // exactly this error, not versionError
		t.Errorf("%+v, %v", m, err)
	}
}

func TestInboxRefuses(t *testing.T) {
	header := func(length uint32, fds byte) []byte {
		return append(binary.LittleEndian.AppendUint32(nil, length), fds)
	}
	for name, h := range map[string][]byte{
		"nothing": header(0, 0), "too long": header(MaxFrame+1, 0), "much too long": header(1<<32-1, 0),
		"too many descriptors": header(1, MaxDescriptors+1),
	} {
		var in Inbox[int]
		in.Put(h)
		if m, _, err := in.Take(); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v, %v", name, m, err)
		}
	}
	var in Inbox[int]
	in.Put(header(MaxFrame, 0))
	if m, _, err := in.Take(); m != nil || err != nil {
		t.Errorf("the longest, not yet there: %v, %v", m, err)
	}
	in = Inbox[int]{}
	frame := Encode(&Ready{})
	Accompany(frame, 2)
	in.Put(frame, 7)
	if m, _, err := in.Take(); !errors.Is(err, ErrMalformed) {
		t.Errorf("a descriptor is missing: %v, %v", m, err)
	}
}

func TestStageNames(t *testing.T) {
	seen := map[string]bool{}
	for s := StageProtocol; s <= StageExec; s++ {
		if n := s.String(); n == "" || n == "unknown" || seen[n] {
			t.Errorf("stage %d is %q", s, n)
		}
		seen[s.String()] = true
	}
	for _, s := range []Stage{0, StageExec + 1, 1<<32 - 1} {
		if s.String() != "unknown" {
			t.Errorf("%d is %s", s, s)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, m := range []Message{
		&Setup{Namespaced: true, Hostname: "h", Masked: []string{"a", "b"}, Binds: []Bind{{"a", "b"}}, Volumes: []Volume{{1, "x", true}}},
		&Exec{ID: 1, Args: []string{"x"}, Rlimits: []Rlimit{{1, 2, 3}}, Seccomp: []byte{1},
			Landlock: Ruleset{Rules: []Rule{{"/", 1}}, FS: 1, Scoped: 2}, Cgroups: []int{3}},
		&Signal{1, true, 9}, &Started{1, 2, 3}, &Exited{1, 2, 3, 4, 5}, &Failed{1, StageExec, 2, "x"}, &Ready{},
		&Expect{ID: 1, Landlock: Ruleset{Rules: []Rule{{"/", 1}}, FS: 1, Scoped: 2}, Loopback: true}, &Expected{1}, &Adopt{1, 2},
	} {
		f.Add(Encode(m)[HeaderSize:])
	}
	f.Add([]byte{byte(KindSetup), Version, 1, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, body []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		m, err := Decode(body)
		runtime.ReadMemStats(&after)
		// A string costs sixteen bytes for one byte of frame, a rule 24; slices double as they grow.
		if grew := after.TotalAlloc - before.TotalAlloc; grew > uint64(len(body))*200+64<<10 {
			t.Errorf("%d bytes made it allocate %d", len(body), grew)
		}
		if err != nil {
			return
		}
		// A decoded message is equal after another encoding and decoding.
		again, err := Decode(Encode(m.(Message))[HeaderSize:])
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m, again, cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
	})
}

func FuzzInbox(f *testing.F) {
	f.Add(Encode(&Signal{1, true, 9}), uint8(3))
	f.Add(append(Encode(&Ready{}), Encode(&Ready{})...), uint8(1))
	f.Fuzz(func(t *testing.T, stream []byte, piece uint8) {
		var in Inbox[int]
		for size := int(piece) + 1; len(stream) > 0; stream = stream[min(size, len(stream)):] {
			in.Put(stream[:min(size, len(stream))], 1)
			for {
				m, fds, err := in.Take()
				if err != nil {
					return
				}
				if m == nil {
					break
				}
				if len(fds) > MaxDescriptors {
					t.Errorf("%d descriptors", len(fds))
				}
			}
		}
	})
}
