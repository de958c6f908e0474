package full

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"text/template"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-run/sandbox-run/internal/cli"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
)

var update = flag.Bool("update", false, "write the golden files")

const (
	guide       = "../../../docs/guide"
	largestPage = 20_000 // bytes
	rootSection = "sandbox-run: run code"
	rootLink    = "[`sandbox-run`](command-reference.md#sandbox-run-run-code)"
)

// TestReference compares the pages of the command reference with the command tree; -update writes them. The templates in testdata/reference
// have the text that no help has.
func TestReference(t *testing.T) {
	r := newReference(cli.NewTree(cli.Full{}))
	templates, err := filepath.Glob("testdata/reference/*.md")
	if err != nil || len(templates) == 0 {
		t.Fatal(templates, err)
	}
	for _, path := range templates {
		page, err := template.New(filepath.Base(path)).Funcs(template.FuncMap{
			"command": r.command, "overview": r.overview, "exitCodes": func() string { return rows("code", exitCodes) },
			"variablesText": func() string { return inline(variablesText) }, "variables": func() string { return rows("variable", variables) },
			"withoutVariable": r.withoutVariable,
		}).ParseFiles(path)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := page.Execute(&b, nil); err != nil {
			t.Fatal(err)
		}
		golden := filepath.Join(guide, filepath.Base(path))
		if *update {
			if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(golden); err != nil || !bytes.Equal(got, b.Bytes()) {
			t.Errorf("%s is not what the commands say (%v): go test ./internal/cli/full -run TestReference -update", golden, err)
		}
	}
	for name := range r.open {
		t.Errorf("no page has the command %s", name)
	}
}

var (
	markdownLink    = regexp.MustCompile(`\]\(([^):#]*)(?:#([^)]*))?\)`)
	markdownHeading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notInAnchor     = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// TestGuide checks the size of the pages of the user guide, and that the files and headings exist that they and the README link to.
func TestGuide(t *testing.T) {
	pages := testenv.GuidePages(t)
	for _, page := range append(pages, filepath.Join(guide, "../../README.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > largestPage {
			t.Errorf("%s has %d bytes, more than %d", page, len(text), largestPage)
		}
		for _, link := range markdownLink.FindAllSubmatch(text, -1) {
			path, anchor := filepath.Join(filepath.Dir(page), string(link[1])), string(link[2])
			if len(link[1]) == 0 {
				path = page
			}
			if _, err := os.Stat(path); err != nil || anchor != "" && !hasAnchor(path, anchor) {
				t.Errorf("%s: the link %s leads nowhere", page, link[0][1:])
			}
		}
	}
}

// hasAnchor reports whether a heading of a Markdown file has this anchor.
func hasAnchor(path, anchor string) bool {
	text, _ := os.ReadFile(path)
	for _, heading := range markdownHeading.FindAllSubmatch(text, -1) {
		if strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(string(heading[1])), ""), " ", "-") == anchor {
			return true
		}
	}
	return false
}

// reference renders commands as Markdown.
type reference struct {
	root *cobra.Command
	open map[string]bool // commands that no page has yet
}

func newReference(root *cobra.Command) *reference {
	r := &reference{root: root, open: map[string]bool{root.Name(): true}}
	for _, sub := range root.Commands() {
		r.open[sub.Name()] = true
	}
	return r
}

// overview is the row of a command in the overview, with the page of the reference that has it ("" is this one) and the link to the guide.
func (r *reference) overview(name, page, link string) (string, error) {
	cmd, _, err := r.root.Find([]string{name})
	return strings.TrimSpace(row(fmt.Sprintf("[`%s`](%s#%s)", name, page, name), inline(cmd.Short), link)), err
}

// command is the section of a command and those of its subcommands.
func (r *reference) command(name string) (string, error) {
	cmd, title := r.root, rootSection
	if name != r.root.Name() {
		var err error
		if cmd, _, err = r.root.Find([]string{name}); err != nil {
			return "", err
		}
		title = name
	}
	delete(r.open, name)
	var b strings.Builder
	r.section(&b, cmd, "## "+title)
	return strings.TrimSpace(b.String()), nil
}

func (r *reference) section(b *strings.Builder, cmd *cobra.Command, heading string) {
	fmt.Fprintf(b, "%s\n\n", heading)
	if strings.HasSuffix(cmd.Use, " COMMAND") {
		fmt.Fprintf(b, "```text\n%s\n```\n\n", cmd.CommandPath()+" COMMAND [flags]")
	} else {
		fmt.Fprintf(b, "```text\n%s\n```\n\n", cmd.UseLine())
	}
	for paragraph := range strings.SplitSeq(cmp.Or(cmd.Long, cmd.Short+"."), "\n\n") {
		if first, rest, _ := strings.Cut(paragraph, "\n"); strings.HasPrefix(rest, "  ") { // a list
			fmt.Fprintf(b, "%s\n\n```text\n%s\n```\n\n", inline(first), strings.ReplaceAll(rest[2:], "\n  ", "\n"))
			continue
		}
		fmt.Fprintf(b, "%s\n\n", inline(paragraph))
	}
	if len(cmd.Aliases) > 0 {
		fmt.Fprintf(b, "Other name: `%s`.\n\n", strings.Join(cmd.Aliases, "`, `"))
	}
	r.flags(b, cmd)
	if examples, _, _ := strings.Cut(cmd.Example, exampleBreak); examples != "" && !cmd.HasSubCommands() || cmd == r.root {
		fmt.Fprintf(b, "```console\n%s\n```\n\n", strings.ReplaceAll("\n"+examples, "\n  ", "\n$ ")[1:])
	}
	if cmd == r.root {
		return
	}
	for _, sub := range cmd.Commands() {
		r.section(b, sub, "### "+strings.TrimPrefix(sub.CommandPath(), r.root.Name()+" "))
	}
}

// flags lists the flags of a command by group. Those that are the root's, too, are only named.
func (r *reference) flags(b *strings.Builder, cmd *cobra.Command) {
	var same []string
	group, started := "", false
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" {
			return
		}
		if of := r.root.Flags().Lookup(f.Name); cmd != r.root && of != nil && of.Usage == f.Usage && of.DefValue == f.DefValue {
			same = append(same, "`--"+f.Name+"`")
			return
		}
		if g := f.Annotations[cli.FlagGroup]; len(g) > 0 && g[0] != group {
			if started {
				b.WriteString("\n")
			}
			group, started = g[0], false
			fmt.Fprintf(b, "**%s**\n\n", group)
		}
		if !started {
			b.WriteString("| flag | meaning | default | variable |\n|---|---|---|---|\n")
			started = true
		}
		b.WriteString(flagRow(f))
	})
	if started {
		b.WriteString("\n")
	}
	if len(same) > 0 {
		fmt.Fprintf(b, "As for %s: %s.\n\n", rootLink, strings.Join(same, ", "))
	}
}

var defaultInUsage = regexp.MustCompile(` \(default ([^)]*)\)`)

func flagRow(f *pflag.Flag) string {
	value, usage := pflag.UnquoteUsage(f)
	name := "`--" + strings.TrimSpace(f.Name+" "+value) + "`"
	if f.Shorthand != "" {
		name = "`-" + f.Shorthand + "`, " + name
	}
	standard := inline(f.DefValue)
	if f.DefValue == "false" {
		standard = "off"
	}
	if m := defaultInUsage.FindStringSubmatch(usage); m != nil {
		usage, standard = strings.Replace(usage, m[0], "", 1), inline(m[1])
	}
	variable := cli.FlagVariable(f)
	if variable != "" {
		variable = "`" + variable + "`"
	}
	return row(name, inline(usage), standard, variable)
}

// withoutVariable lists the flags that have no variable.
func (r *reference) withoutVariable() string {
	var names []string
	visitCommands(r.root, func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" && cli.FlagVariable(f) == "" {
				names = append(names, "`"+strings.TrimPrefix(cmd.CommandPath()+" --"+f.Name, r.root.Name()+" ")+"`")
			}
		})
	})
	return strings.Join(names, ", ")
}

func rows(title string, of [][2]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s | meaning |\n|---|---|\n", title)
	for _, r := range of {
		b.WriteString(row(inline(r[0]), inline(r[1])))
	}
	return strings.TrimSpace(b.String())
}

func row(cells ...string) string {
	line := "|"
	for _, cell := range cells {
		line += strings.TrimRight(" "+strings.ReplaceAll(cell, "|", `\|`), " ") + " |"
	}
	return line + "\n"
}

// codeWord is a word of help that is code: a flag, a variable, a path, an address, a name in JSON, a form such as name=value.
var codeWord = regexp.MustCompile(
	`^(--([a-z][a-z-]*)?|-|\*|#!|\$[A-Z_]+(/\S+)?|[A-Z]+(_[A-Z]+)+_?|[a-z]+(_[a-z]+)+|/\S+|\S+(/|=|\[:)\S+|\w+\.yaml)$`)

// inline writes help as Markdown of one line.
func inline(text string) string {
	words := strings.Fields(text)
	for i, word := range words {
		start := strings.TrimLeft(word, "(")
		core := strings.TrimRight(start, ".,;:)")
		if codeWord.MatchString(core) {
			words[i] = word[:len(word)-len(start)] + "`" + core + "`" + start[len(core):]
		}
	}
	return strings.Join(words, " ")
}
