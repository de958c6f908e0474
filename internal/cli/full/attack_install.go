package full

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sandbox-run/sandbox-run/internal/attack"
	"github.com/sandbox-run/sandbox-run/internal/attack/hostile"
	"github.com/sandbox-run/sandbox-run/pkg/deps"
	"github.com/sandbox-run/sandbox-run/pkg/deps/registry"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/executor/kit/kitpath"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// installer returns the suite's installations: the executor's own, with a script in place of a language's tool, and a store in a directory
// of the caller. It is nil where there is no sandbox-kit, without which nothing is installed.
func installer(b sandbox.Backend, self, dir string) attack.Install {
	kit, _ := kitpath.Find()
	if kit == "" {
		return nil
	}
	return func(ctx context.Context, i attack.Installation) (*attack.Installed, error) {
		const attacker = language.ToolDir + "/attacker"
		registries := filepath.Join(dir, "registries.yaml")
		if err := os.WriteFile(registries, fmt.Appendf(nil, "registries:\n  pypi:\n    index: %s\n", i.Index), 0o600); err != nil {
			return nil, err
		}
		layers := filepath.Join(dir, "deps")
		if err := os.MkdirAll(layers, 0o700); err != nil {
			return nil, err
		}
		where := ""
		scripted := &executor.Language{
			Name: "attack", Title: "Attack", Extensions: []string{".attack"}, Source: "main.attack",
			Toolchain: &toolchain.Description{Name: "attack", Programs: []string{"sh"},
				Query: func(s *toolchain.Search, found toolchain.Program) (*toolchain.Toolchain, error) {
					t, err := s.Finish(&toolchain.Toolchain{Version: "1", Path: "/bin/sh", Home: "/usr"}, s.View(), found, nil)
					if err == nil {
						t.Mounts = append(t.Mounts, sandbox.Mount{Source: self, Target: attacker})
					}
					return t, err
				}},
			Packages: func(j *language.Job) (*language.Packages, error) {
				step := func(offline bool) language.Step {
					s := language.Step{Args: []string{"/bin/sh", "-c", "mkdir -p layer; " + i.Attack}, Offline: offline}
					if !offline {
						s.Env = map[string]string{"INDEX": language.Index}
					}
					return s
				}
				return &language.Packages{
					Registry: "pypi", Requirements: j.Request.Options.Deps, Steps: []language.Step{step(false), step(true)},
					Env:      map[string]string{hostile.Variable: i.Mark, "ATTACKER": attacker, "WORD": hostile.Word},
					ReadLock: func(map[string][]byte) (*language.Lock, error) { return &language.Lock{}, nil },
				}, nil
			},
			Plan: func(j *language.Job) error {
				if j.Layer != nil {
					where = j.Layer.Dir
					j.Mount(where, attack.LayerInside)
				}
				j.AddRun("/bin/sh", j.Inside(j.Entry))
				return nil
			},
		}
		e := executor.New(sandbox.NewManager(b, sandbox.Options{}), executor.Options{
			Languages: []*executor.Language{scripted}, Toolchains: &toolchain.Finder{Store: filepath.Join(dir, "toolchains")}, Kit: kit,
			RegistriesFile: registries, Registries: registry.Local{File: registries},
			Layers: &deps.Store{Dir: layers, Open: func(create bool) (*image.Store, error) {
				store := filepath.Join(dir, "images")
				if _, err := os.Stat(store); err != nil && !create {
					return nil, nil
				}
				return image.Open(store)
			}},
		})
		r, err := e.Execute(ctx, executor.Request{
			Language: "attack", Code: i.Run + "\n", Env: i.Env, Policy: executor.Policy{Require: b.Probe(ctx).Tier},
			Options: executor.LanguageOptions{Deps: []string{i.Name}},
		})
		if err != nil {
			return nil, err
		}
		defer r.Close()
		if len(r.Phases) < 3 || r.Verdict != sandbox.VerdictOK {
			return nil, fmt.Errorf("%d phases, %s: %.300s", len(r.Phases), r.Verdict, r.Stderr.Bytes())
		}
		return &attack.Installed{Online: []byte(r.Phases[0].Stdout), Offline: []byte(r.Phases[1].Stdout), Run: r.Stdout.Bytes(), Layer: where}, nil
	}
}
