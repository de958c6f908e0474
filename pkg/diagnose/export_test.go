package diagnose

import "fmt"

// RuleOf names the rule that explains a failure; "": none.
func RuleOf(f *Failure) string {
	c := &inquiry{Failure: f}
	c.read()
	if c.explainLimit() == nil {
		_ = c.explainThrown()
	}
	for id, r := range allRules() {
		if r == c.applied && r != nil {
			return id
		}
	}
	return ""
}

// Rules names all rules.
func Rules() (all []string) {
	for id := range allRules() {
		all = append(all, id)
	}
	return all
}

func allRules() map[string]*rule {
	all := map[string]*rule{}
	add := func(table string, rules []rule) {
		for i := range rules {
			all[fmt.Sprintf("%s: %s %q", table, rules[i].class, rules[i].pattern)] = &rules[i]
		}
	}
	add("common", commonRules)
	for _, p := range parsers {
		if p.language != "typescript" && p.language != "postgres" { // their tables are those of JavaScript and SQLite
			add(p.language, p.rules)
		}
	}
	return all
}
