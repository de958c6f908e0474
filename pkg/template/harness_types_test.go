package template

import (
	"strings"
	"testing"
)

// TestHarnessTypes: what functions may take and return, and how exactly it is compared.
func TestHarnessTypes(t *testing.T) {
	for _, c := range []struct {
		name, language, function, code, cases string
		want                                  map[string]string
	}{
		{"values", "python", "", `
def solve(x): return {"t": (1, 2), "f": 0.1 + 0.2, 3: None} if x == "mixed" else x if x != "set" else {3, 1, 2}`, `
- {name: exact, args: [mixed], want: {t: [1, 2], f: 0.3, "3": ~}}
- {name: near, args: [mixed], want: {t: [1, 2], f: 0.3, "3": ~}, tolerance: 1e-9}
- {name: truth, args: [true], want: 1}
- {name: digits, args: [123456789012345678901234567890], want: 123456789012345678901234567890}
- {name: off by one, args: [123456789012345678901234567890], want: 123456789012345678901234567891}
- {name: sets, args: [set], want: [1, 2, 3]}
- {name: text, args: ["a\nb\nc"], want: "a\nX\nc"}
`, map[string]string{"exact": "FAIL", "near": "pass", "truth": "FAIL", "digits": "pass", "off by one": "FAIL", "sets": "pass",
			"text": "FAIL"}},
		{"method, coroutine", "python", "Solution.twice",
			"import asyncio\nclass Solution:\n  async def twice(self, n):\n    await asyncio.sleep(0)\n    return n * 2\n",
			"- {name: a, args: [2], want: 4}", map[string]string{"a": "pass"}},
		{"no function", "python", "absent", "x = 1", "- {name: a, args: [2], want: 4}", map[string]string{"a": "FAIL"}},
		{"syntax error", "python", "", "def solve(:", "- {name: a, args: [2], want: 4}", map[string]string{"a": "FAIL SyntaxError"}},
		{"module", "javascript", "", "export async function solve(n) { return { a: [n, NaN === NaN], b: undefined } }",
			"- {name: a, args: [2], want: {a: [2, false], b: ~}}", map[string]string{"a": "pass"}},
		{"not a number", "javascript", "", "const solve = (x) => x === 'nan' ? NaN : x === 'big' ? 2n ** 70n : -0\n",
			"- {name: nan, args: [nan], want: ~}\n- {name: big, args: [big], want: '1180591620717411303424'}\n- {name: zero, args: [0], want: 0}",
			map[string]string{"nan": "FAIL", "big": "pass", "zero": "pass"}},
		{"exports", "javascript", "", "module.exports = { solve: (s) => s.length }", "- {name: a, args: [four], want: 4}",
			map[string]string{"a": "pass"}},
		{"rejection", "javascript", "", "function solve() { return new Promise(() => { setTimeout(() => { throw new Error('late') }, 5) }) }",
			"- {name: a, args: [], want: 4}", map[string]string{"a": "FAIL Error: late"}},
		{"class", "typescript", "Solution.add",
			"export enum K { A = 1 }\nclass Solution { add(a: number, b: number = K.A): number { return a + b } }\n",
			"- {name: a, args: [2], want: 3}", map[string]string{"a": "pass"}},
		{"values", "go", "", `package main
import "errors"
type point struct { X, Y int ` + "`json:\"y\"`" + ` }
func solve(op string, n int64, l []float64, m map[string]bool, r rune, p *point, more ...string) (any, error) {
	switch op {
	case "error": return nil, errors.New("no luck")
	case "nil": var s []int; return s, nil
	case "float": return l[0] + l[1], nil
	}
	return []any{n, l, m, string(r), p, more}, nil
}
func main() { panic("never") }
`, `
- {name: all, args: [x, 9007199254740993, [0.5], {k: true}, é, ~, a, b], want: [9007199254740993, [0.5], {k: true}, é, ~, [a, b]]}
- {name: error, args: [error, 1, [], {}, "x", ~], want: ~}
- {name: nil, args: [nil, 1, [], {}, "x", ~], want: []}
- {name: near, args: [float, 1, [0.1, 0.2], {}, "x", ~], want: 0.3, tolerance: 0.001}
- {name: exact, args: [float, 1, [0.1, 0.2], {}, "x", ~], want: 0.3}
- {name: type, args: [1, 1, [], {}, "x", ~], want: 0}
- {name: few, args: [x], want: 0}
`, map[string]string{"all": "pass", "error": "FAIL error: no luck", "nil": "pass", "near": "pass", "exact": "FAIL",
			"type": "FAIL argument 1 is no string", "few": "FAIL"}},
		{"references", "rust", "longest", `
use std::collections::HashMap;
fn longest<'a>(words: &[String], all: &'a str, n: u8, m: HashMap<String, Vec<i32>>, o: Option<f64>)
    -> Result<(usize, &'a str, Option<f64>, i32), String> {
    if n == 0 { return Err("zero".to_string()); }
    Ok((words.len(), all, o.map(|x| x * 2.0), m.values().flatten().sum()))
}
`, `
- {name: all, args: [[a, b], é😀, 7, {k: [1, 2]}, 0.25], want: [2, é😀, 0.5, 3]}
- {name: none, args: [[], x, 7, {}, ~], want: [0, x, ~, 0]}
- {name: error, args: [[], x, 0, {}, ~], want: ~}
- {name: range, args: [[], x, 256, {}, ~], want: ~}
`, map[string]string{"all": "pass", "none": "pass", "error": "FAIL zero", "range": "FAIL argument 3 is no u8"}},
		{"values", "java", "", `
String solve(String s, int[] n, java.util.List<Long> l, java.util.Map<String, Double> m, char c, Boolean b) {
  return s + n.length + l.get(0) + m.get("k") + c + b + "é";
}`, `
- {name: all, args: ["é", [1, 2], [9007199254740993], {k: 0.5}, x, ~], want: "é290071992547409930.5xnullé"}
- {name: type, args: ["é", [1.5], [1], {}, x, ~], want: ""}
- {name: few, args: [], want: ""}
`, map[string]string{"all": "pass", "type": "FAIL", "few": "FAIL takes 6 arguments"}},
		{"function", "shell", "greet", `
prefix=Hello
greet() { read -r line; [[ $1 == fail ]] && return 4; printf '%s, %s%s\n' "$prefix" "$*" "$line"; }
`, `
- {name: right, args: ["it's", "a  b"], want: "Hello, it's a  b\n"}
- {name: input, args: [x], stdin: "!\n", want: "Hello, x!\n"}
- {name: code, args: [fail], want: "", exit_code: 4}
- {name: wrong, args: [x], want: "Hello, y\n"}
`, map[string]string{"right": "pass", "input": "pass", "code": "pass", "wrong": "FAIL wrong result"}},
		{"query", "sql", "-", "-- the eldest; by name\nSELECT name, age FROM people WHERE age >= 18 ORDER BY age DESC;", `
- {name: two, tables: {people: {columns: [name, age], rows: [["O'Neil", 40], [b, 50], [c, 7]]}}, want: [[b, 50], ["O'Neil", 40]]}
- {name: order, tables: {people: [{name: a, age: 40}, {name: b, age: 50}]}, want: [[a, 40], [b, 50]]}
- {name: any order, ordered: false, tables: {people: [{name: a, age: 40}, {name: b, age: 50}]}, want: [[a, 40], [b, 50]]}
- {name: no rows, tables: {people: {columns: [name, age], rows: []}}, want: []}
- {name: a row, tables: {people: [{name: a, age: 40}]}, want: []}
- {name: twice, ordered: false, tables: {people: [{name: a, age: 40}]}, want: [[a, 40], [a, 40]]}
`, map[string]string{"two": "pass", "order": "FAIL", "any order": "pass", "no rows": "pass", "a row": "FAIL", "twice": "FAIL"}},
	} {
		t.Run(c.language+" "+c.name, func(t *testing.T) {
			t.Parallel()
			vars := map[string]any{"code": c.code, "cases": c.cases}
			if c.function != "" && c.function != "-" {
				vars["function"] = c.function
			}
			output, code := runHarness(t, "harness", c.language, vars)
			if c.language == "sql" {
				// The error that makes the exit code comes last.
				before, _, _ := strings.Cut(output, "\nRuntime error")
				before, _, _ = strings.Cut(before, "\nError:")
				output = before
			}
			expect(t, output, code, c.want)
		})
	}
}

// TestHarnessAllPass: nothing but the table and the sum, and exit code 0.
func TestHarnessAllPass(t *testing.T) {
	output, code := runHarness(t, "harness", "python",
		map[string]any{"code": "def solve(a, b):\n    return a + b\n", "cases": `[{"name": "sum", "args": [1, 2], "want": 3}]`})
	lines := strings.Split(output, "\n")
	if code != 0 || len(lines) != 5 || !strings.HasPrefix(lines[1], "sum   pass ") || lines[3] != "1 passed, 0 failed" {
		t.Errorf("exit code %d:\n%s", code, output)
	}
}
