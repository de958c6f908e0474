package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbox-run/sandbox-run/internal/app"
	"github.com/sandbox-run/sandbox-run/internal/detached"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// gcReport is the JSON document of gc.
type gcReport struct {
	DryRun bool      `json:"dry_run"`
	Found  []residue `json:"found"`
	Failed int       `json:"failed"` // how many could not be removed
}

type residue struct {
	Backend string `json:"backend"`
	sandbox.Residue
}

func (c *Invocation) newGC() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use: "gc [flags]",
		Long: `Finds and removes what sandbox-run left behind when it was killed: control groups,
directories and mounts of sandboxes; directories of named sessions and of agents; image downloads that
were not resumed for a day, builds that were killed, and files that belong to no image. Nothing that is in use is
touched. Every start of a sandbox collects the leftovers of sandboxes, and every build
those of builds; gc is for machines on which no other run follows soon.`,
		Example: "  sandbox-run gc --dry-run\n  sandbox-run gc",
		RunE:    func(cmd *cobra.Command, _ []string) error { return c.collectLeftovers(cmd.Context(), dryRun) },
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print what would be removed")
	cmd.Flags().BoolVar(&c.JSON, "json", false, "print the findings as one JSON document")
	return cmd
}

func (c *Invocation) collectLeftovers(ctx context.Context, dryRun bool) error {
	report := gcReport{DryRun: dryRun, Found: []residue{}}
	var failed []error
	for _, name := range app.Backends() {
		found, err := collectFrom(ctx, name, dryRun)
		failed = append(failed, err)
		for _, r := range found {
			// Backends may share a registry: what one could not remove, the next finds again.
			if slices.ContainsFunc(report.Found, func(seen residue) bool { return seen.Kind == r.Kind && seen.Name == r.Name }) {
				continue
			}
			report.Found = append(report.Found, residue{name, r})
			if !dryRun && !r.Removed {
				report.Failed++
			}
		}
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	found, err := collectImages(ctx, dryRun)
	if err == nil && c.full != nil {
		var builds []sandbox.Residue
		builds, err = c.full.CollectBuilds(ctx, dryRun)
		found = append(found, builds...)
	}
	if err != nil {
		return err
	}
	sessions, err := detached.Collect(dryRun)
	if err != nil {
		return err
	}
	agents, err := detached.CollectAgents(dryRun)
	if err != nil {
		return err
	}
	for i, r := range slices.Concat(found, sessions, agents) {
		label := imagesLabel
		if i >= len(found) {
			label = r.Kind + "s" // sessions, agents
		}
		report.Found = append(report.Found, residue{label, r})
		if !dryRun && !r.Removed {
			report.Failed++
		}
	}
	if report.Failed > 0 {
		c.Code = codeOurs
	}
	if c.JSON {
		return c.WriteJSON(report)
	}
	_, err = fmt.Fprint(c.Std.Out, EscapeText(report.formatText()))
	return err
}

// imagesLabel stands in the field of the backend for leftovers of images, as the kind of others does.
const imagesLabel = "images"

// collectImages removes files that belong to no image from the store, if there is a store.
func collectImages(ctx context.Context, dryRun bool) (found []sandbox.Residue, err error) {
	store, err := app.OpenExistingImages()
	if err != nil || store == nil {
		return nil, err
	}
	before, err := store.Leftovers()
	if err != nil || len(before) == 0 {
		return nil, err
	}
	after, problem := before, ""
	if !dryRun {
		if err := store.Collect(ctx); err != nil {
			problem = err.Error()
		}
		if after, err = store.Leftovers(); err != nil {
			return nil, err
		}
	}
	for _, l := range before {
		r := sandbox.Residue{Kind: l.Kind, Name: l.Path, Removed: !slices.Contains(after, l)}
		if !r.Removed {
			r.Problem = problem
		}
		found = append(found, r)
	}
	return found, nil
}

func collectFrom(ctx context.Context, name string, dryRun bool) ([]sandbox.Residue, error) {
	b, err := app.Open(name, app.Options{})
	if err != nil {
		return nil, err
	}
	defer b.Close()
	return b.Collect(ctx, dryRun)
}

func (g gcReport) formatText() string {
	if len(g.Found) == 0 {
		return "nothing was left behind\n"
	}
	var b strings.Builder
	for _, r := range g.Found {
		state := "removed"
		switch {
		case g.DryRun:
			state = "found"
		case !r.Removed:
			state = "FAILED"
		}
		fmt.Fprintf(&b, "%-8s %-13s %s", state, r.Kind, r.Name)
		if r.Problem != "" {
			fmt.Fprintf(&b, ": %s", r.Problem)
		}
		b.WriteByte('\n')
	}
	switch {
	case g.DryRun:
		fmt.Fprintf(&b, "%d found; sandbox-run gc removes them\n", len(g.Found))
	case g.Failed > 0:
		fmt.Fprintf(&b, "%d removed, %d could not be\n", len(g.Found)-g.Failed, g.Failed)
	default:
		fmt.Fprintf(&b, "%d removed\n", len(g.Found))
	}
	return b.String()
}
