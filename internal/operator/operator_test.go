package operator

import (
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCheck(t *testing.T) {
	for name, test := range map[string]struct {
		s    Settings
		says string
	}{
		"nothing": {Settings{}, ""},
		"all": {Settings{TLSCert: "c", TLSKey: "k", Volumes: []string{"/srv/data"}, WritableVolumes: true, Webhooks: true,
			WebhookHosts: []string{"h"}, Rate: 1, Burst: 2, Env: []string{"A"}, Dir: "/var/x"}, ""},
		"cert alone":         {Settings{TLSCert: "c"}, "--tls-key FILE"},
		"key alone":          {Settings{TLSKey: "k"}, "--tls-cert FILE"},
		"TLS, and not":       {Settings{TLSCert: "c", TLSKey: "k", InsecureHTTP: true}, "contradicts"},
		"relative volume":    {Settings{Volumes: []string{"srv"}}, "plain absolute"},
		"dots":               {Settings{Volumes: []string{"/srv/../etc"}}, "plain absolute"},
		"everything":         {Settings{Volumes: []string{"/"}}, "whole host"},
		"writable nothing":   {Settings{WritableVolumes: true}, "allow-volume"},
		"hosts, no webhooks": {Settings{WebhookHosts: []string{"h"}}, "webhooks are off"},
		"burst":              {Settings{Burst: 1}, "rate"},
		"cold and warm":      {Settings{NoWarm: true, Warm: []string{"python"}}, "contradicts"},
		"variable":           {Settings{Env: []string{"A=b"}}, "not the name"},
		"dir":                {Settings{Dir: "x"}, "plain absolute"},
	} {
		err := test.s.Check()
		if test.says == "" && err != nil || test.says != "" &&
			(!errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), test.says)) {
			t.Errorf("%s: %v, want %q", name, err, test.says)
		}
	}
}

// Every setting is either taken over by a running server or named as one that is not: whatever field differs.
func TestChanges(t *testing.T) {
	taken := []string{"Max", "MaxCompile", "LogLevel"}
	fields := reflect.TypeFor[Settings]()
	for i := range fields.NumField() {
		var before, after Settings
		f := reflect.ValueOf(&after).Elem().Field(i)
		switch f.Interface().(type) {
		case string:
			f.SetString("x")
		case []string:
			f.Set(reflect.ValueOf([]string{"x"}))
		case bool:
			f.SetBool(true)
		case int, time.Duration, slog.Level:
			f.SetInt(4)
		case float64:
			f.SetFloat(4)
		case sandbox.Size:
			f.SetUint(4)
		case sandbox.Tier:
			f.SetString("x")
		case sandbox.Limits:
			f.Set(reflect.ValueOf(sandbox.Limits{Memory: 1}))
		default:
			t.Fatalf("%s is of a kind that this test does not know", fields.Field(i).Name)
		}
		name := fields.Field(i).Name
		if got := Changes(&before, &after); slices.Contains(taken, name) != (len(got) == 0) || len(got) > 1 {
			t.Errorf("%s: %q", name, got)
		}
		if got := Changes(&after, &after); len(got) != 0 {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestParseLevel(t *testing.T) {
	if level, err := ParseLevel("warn"); level != slog.LevelWarn || err != nil {
		t.Errorf("%v, %v", level, err)
	}
	for _, bad := range []string{"", "WARN", "info+2", "loud"} {
		if _, err := ParseLevel(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
