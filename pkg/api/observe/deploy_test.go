package observe

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

const deploy = "../../../deploy/"

// exposed returns the names of all metrics, with the series of histograms.
func exposed(t *testing.T) map[string]bool {
	t.Helper()
	o := everything(t)
	defer closed(t, o)
	families, err := o.metrics.registry.Gather()
	must(t, err)
	names := map[string]bool{"up": true}
	for _, f := range families {
		names[f.GetName()] = true
		if len(f.Metric) > 0 && f.Metric[0].Histogram != nil {
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				names[f.GetName()+part] = true
			}
		}
	}
	return names
}

// series finds the names of metrics in an expression.
var series = regexp.MustCompile(`\b(?:sandbox_run_|process_|go_)[a-z0-9_]+|\bup\b`)

// Every metric on the dashboard exists, and every panel has one.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(deploy + "grafana/sandbox-run.json")
	must(t, err)
	var board struct {
		UID    string
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Query string }
		}
	}
	must(t, json.Unmarshal(text, &board))
	names, used, ids := exposed(t), map[string]bool{}, map[int]bool{}
	for _, p := range board.Panels {
		if len(p.Targets) == 0 || ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%s: %+v", p.Title, p)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			found := series.FindAllString(target.Expr, -1)
			if len(found) == 0 {
				t.Errorf("%s: no metric in %q", p.Title, target.Expr)
			}
			for _, name := range found {
				if used[strings.TrimSuffix(name, "_bucket")] = true; !names[name] {
					t.Errorf("%s: there is no %s", p.Title, name)
				}
			}
		}
	}
	for _, v := range board.Templating.List {
		for _, name := range series.FindAllString(v.Query, -1) {
			if !names[name] {
				t.Errorf("variable %s: there is no %s", v.Name, name)
			}
		}
	}
	// Every metric must be on a panel.
	for name := range names {
		base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count")
		if strings.HasPrefix(name, "sandbox_run_") && !used[base] && name != "sandbox_run_pool_warm_starts_total" &&
			name != "sandbox_run_isolation_runs_total" {
			t.Errorf("%s is on no panel", name)
		}
	}
}

// Alert rules are valid, and use metrics that exist.
func TestAlerts(t *testing.T) {
	for file, rules := range map[string]bool{"prometheus/alerts.yml": true, "prometheus/prometheus.yml": false, "compose.yaml": false} {
		text, err := os.ReadFile(deploy + file)
		must(t, err)
		var doc struct {
			Groups []struct {
				Name  string
				Rules []struct {
					Alert, Expr, For string
					Labels           map[string]string
					Annotations      map[string]string
				}
			}
		}
		if err := yaml.Unmarshal(text, &doc); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if !rules {
			continue
		}
		names, seen := exposed(t), map[string]bool{}
		for _, g := range doc.Groups {
			for _, r := range g.Rules {
				if r.Alert == "" || seen[r.Alert] || r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
					t.Errorf("%+v", r)
				}
				seen[r.Alert] = true
				found := series.FindAllString(r.Expr, -1)
				for _, name := range found {
					if !names[name] {
						t.Errorf("%s: there is no %s", r.Alert, name)
					}
				}
				if len(found) == 0 {
					t.Errorf("%s: no metric in %q", r.Alert, r.Expr)
				}
			}
		}
		if len(seen) < 10 {
			t.Errorf("%d alerts", len(seen))
		}
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Log("promtool is not installed (scripts/deps.sh test-all): the rules' expressions were not parsed")
		return
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"check", "config", "--syntax-only", "prometheus.yml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = filepath.Join(deploy, "prometheus")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
