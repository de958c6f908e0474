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

	"github.com/sandbox-run/sandbox-run/pkg/network"
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
		"networks": {Settings{Network: network.Policy{Mode: network.Full, Deny: []string{"a.example"}}, Publish: true,
			Forbidden: []string{"10.0.0.0/8", "2001:db8::1"}, Registries: []string{"npm=npm.example:443"}}, ""},
		"rule":             {Settings{Network: network.Policy{Allow: []string{"http://a"}}}, "max-network: allow: rule \"http://a\": it has a scheme"},
		"rules for none":   {Settings{Network: network.Policy{Mode: network.Localhost, Allow: []string{"a"}}}, "mode localhost"},
		"forbidden bits":   {Settings{Forbidden: []string{"10.0.0.1/8"}}, "forbid-network"},
		"forbidden name":   {Settings{Forbidden: []string{"a.example"}}, "10.0.0.0/8"},
		"publish nothing":  {Settings{Publish: true}, "max-network"},
		"registry":         {Settings{Registries: []string{"npm"}}, "npm=npm.example.com"},
		"unknown registry": {Settings{Registries: []string{"a=b.example"}}, "unknown registry"},
		"registry's rule":  {Settings{Registries: []string{"npm=*"}}, "wildcard"},
	} {
		err := test.s.Check()
		if test.says == "" && err != nil || test.says != "" &&
			(!errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), test.says)) {
			t.Errorf("%s: %v, want %q", name, err, test.says)
		}
	}
}

// TestBounds: without settings, requests get what needs no permission; with them, just that.
func TestBounds(t *testing.T) {
	for name, test := range map[string]struct {
		s       Settings
		ask     network.Policy
		refused string
	}{
		"none":          {Settings{}, network.Policy{}, ""},
		"localhost":     {Settings{}, network.Policy{Mode: network.Localhost}, ""},
		"a rule":        {Settings{}, network.Policy{Allow: []string{"a.example"}}, "the mode allow is more"},
		"not localhost": {Settings{Network: network.Policy{Mode: network.None}}, network.Policy{Mode: network.Localhost}, "localhost is more"},
		"allowed":       {Settings{Network: network.Policy{Allow: []string{"*.a.example"}}}, network.Policy{Allow: []string{"b.a.example"}}, ""},
		"another":       {Settings{Network: network.Policy{Allow: []string{"*.a.example"}}}, network.Policy{Allow: []string{"b.example"}}, "more than"},
		"learn":         {Settings{Network: network.Policy{Mode: network.Learn}}, network.Policy{Mode: network.Learn}, ""},
		"not learn":     {Settings{Network: network.Policy{Mode: network.Full}}, network.Policy{Mode: network.Learn}, "learn is more"},
		"forbidden": {Settings{Network: network.Policy{Mode: network.Full, Allow: []string{"10.0.0.0/8"}}, Forbidden: []string{"10.1.0.0/16"}},
			network.Policy{Allow: []string{"10.1.2.3"}}, "forbidden by the operator"},
		"not forbidden": {Settings{Network: network.Policy{Mode: network.Full, Allow: []string{"10.0.0.0/8"}}, Forbidden: []string{"10.1.0.0/16"}},
			network.Policy{Allow: []string{"10.2.2.3"}}, ""},
		"publish": {Settings{Network: network.Policy{Mode: network.Allow}}, network.Policy{Publish: []string{"80"}}, "published ports"},
		"published": {Settings{Network: network.Policy{Mode: network.Allow}, Publish: true},
			network.Policy{Publish: []string{"80"}}, ""},
		"dns":       {Settings{Network: network.Policy{Mode: network.Allow}}, network.Policy{DNS: true}, "resolve every name"},
		"every dns": {Settings{Network: network.Policy{Mode: network.Allow, DNS: true}}, network.Policy{DNS: true}, ""},
		"full dns":  {Settings{Network: network.Policy{Mode: network.Full}}, network.Policy{DNS: true}, ""},
		"registry": {Settings{Network: network.Policy{Registries: []string{"npm"}}, Registries: []string{"npm=a.example:1", "npm=b.example:2"}},
			network.Policy{Registries: []string{"npm"}}, ""},
		"registry's old host": {Settings{Network: network.Policy{Registries: []string{"npm"}}, Registries: []string{"npm=a.example:1"}},
			network.Policy{Allow: []string{"registry.npmjs.org:443"}}, "more than"},
	} {
		b, err := test.s.Bounds()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := test.ask.Compile(b); test.refused == "" && err != nil ||
			test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused)) {
			t.Errorf("%s: %v, want %q", name, err, test.refused)
		}
	}
}

// Every setting is either taken over by a running server or named as one that is not: whatever field differs.
func TestChanges(t *testing.T) {
	taken := []string{"Max", "MaxCompile", "Network", "Forbidden", "Publish", "Registries", "LogLevel"}
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
		case network.Policy:
			f.Set(reflect.ValueOf(network.Policy{Mode: network.Full}))
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
