package yamlite

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestDecode(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"empty", "", `null`},
		{"comment", "# nothing\n\n", `null`},
		{"document", "---\na: 1\n", `{"a":1}`},
		{"scalars", "a: 1\nb: -1.50\nc: .5\nd: 1.\ne: 1e3\nf: 0x1f\ng: 0o17\nh: +3\ni: true\nj: ~\nk:\nl: null\nm: yes\n",
			`{"a":1,"b":-1.50,"c":0.5,"d":1.0,"e":1e3,"f":31,"g":15,"h":3,"i":true,"j":null,"k":null,"l":null,"m":"yes"}`},
		{"texts", "a: 1_000\nb: 2020-01-01\nc: a#b\nd: x # y\ne: http://x:80/\nf: -\u00e4\ng: '#'\nh: 1.2.3\ni: --x\nj: 12ab\n",
			`{"a":"1_000","b":"2020-01-01","c":"a#b","d":"x","e":"http://x:80/","f":"-ä","g":"#","h":"1.2.3","i":"--x","j":"12ab"}`},
		{"digits", "- 123456789012345678901234567890\n- 0.1000\n", `[123456789012345678901234567890,0.1000]`},
		{"nested", "a:\n  b:\n    - 1\n    - c: 2\n      d:\n      - 3\n  e: f\n", `{"a":{"b":[1,{"c":2,"d":[3]}],"e":"f"}}`},
		{"sequence under key", "a:\n- 1\n- 2\nb: 3\n", `{"a":[1,2],"b":3}`},
		{"sequences", "- - 1\n  - 2\n-\n  - 3\n-\n- a:\n", `[[1,2],[3],null,{"a":null}]`},
		{"plain lines", "a: one\n  two\n\n  three # end\nb: 1\n", `{"a":"one two\nthree","b":1}`},
		{"literal", "a: |\n  x\n   y\n\n  z\n\nb: |-\n  q\nc: |+\n  r\n\nd: |2\n    s\n", `{"a":"x\n y\n\nz\n","b":"q","c":"r\n\n","d":"  s\n"}`},
		{"literal in list", "- |\n  x\n- |\n  # no comment\n", `["x\n","# no comment\n"]`},
		{"folded", "a: >\n  x\n  y\n\n  z\n    w\n  v\n", `{"a":"x y\nz\n  w\nv\n"}`},
		{"quoted", `a: "x\n\u00e9\ud83d\ude00\x41\/"` + "\nb: 'it''s'\n'c d': 1\n\"e\": 2\n", `{"a":"x\né😀A/","b":"it's","c d":1,"e":2}`},
		{"quoted lines", "a: \"x\n  y\n\n  z\\\n  w\"\nb: 'p\n  q'\n", `{"a":"x y\nzw","b":"p q"}`},
		{"flow", "a: [1, two, \"three\", {b: c, d: }, []]\ne: {}\nf: [\n  1, # one\n  2,\n]\n",
			`{"a":[1,"two","three",{"b":"c","d":null},[]],"e":{},"f":[1,2]}`},
		{"flow document", "{a: 1, 'b': [x]}", `{"a":1,"b":["x"]}`},
		{"json", " {\"a\": [1, \"\\u00e9\\ud83d\\ude00\"], \"b\":\t{}}", `{"a":[1,"é😀"],"b":{}}`},
		{"windows", "a: 1\r\nb: |\r\n  x\r\n  y\r\n", `{"a":1,"b":"x\ny\n"}`},
		{"order", "z: 1\na: 2\n", `{"z":1,"a":2}`},
		{"scalar", "just text", `"just text"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := Decode([]byte(c.in))
			if err != nil {
				t.Fatal(err)
			}
			got, err := marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"a: &x 1", "line 1: anchors"}, {"a: *x", "aliases"}, {"a: !!str 1", "tags"}, {"a:\n  <<: b", "line 2: merge"},
		{"%YAML 1.2\n---\n", "directives"}, {"? a\n: b", `"?"`}, {"a: 1\n---\nb: 2", "line 2"}, {"a: .nan", ".nan"}, {"a: -.inf", ".inf"},
		{"a: 017", "leading zero"}, {"a: 1\na: 2", "twice"}, {`{"a": 1, "a": 2}`, "twice"}, {"a: b: c", "quotes"}, {"a:\n\tb: 1", "tab"},
		{"a: 1\n  b: 2", "line 2"}, {"- 1\nb: 2", "line 2"}, {"a: 1\n- 2", "line 2"}, {"a: \"x", "no end"}, {"a: 'x", "no end"},
		{"a: [1", "missing"},
		{"a: {b", "missing"}, {"a: [1] 2", "follows"}, {`a: "\q"`, "escape"}, {`a: "\ud800"`, "names no character"}, {"a: |x\n", "digit"},
		{"a\x00: 1", "0x00"}, {"a: \xff", "line 1: byte 0xff"}, {"a: |\n   x\n  y\n", "less"}, {"a: @x", "quotes"},
		{strings.Repeat("[", 200), "deep"}, {strings.Repeat("- ", 200) + "x", "deep"},
	} {
		v, err := Decode([]byte(c.in))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, %v; want an error with %q", c.in, v, err, c.want)
		}
	}
}

// TestJSONIsYAML: the output of encoding/json is read unchanged, as a document and as a value.
func TestJSONIsYAML(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.MapOf(rapid.String(), rapid.SliceOf(rapid.String())).Draw(t, "in")
		text, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		for _, source := range []string{string(text), "x: " + string(text)} {
			v, err := Decode([]byte(source))
			if err != nil {
				if strings.Contains(err.Error(), "byte 0x7f") {
					return // encoding/json does not escape DEL, and YAML refuses it
				}
				t.Fatalf("%s: %v", source, err)
			}
			if m, ok := v.(Map); ok && source != string(text) {
				v, _ = m.Get("x")
			}
			back, err := marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			var got map[string][]string
			if err := json.Unmarshal(back, &got); err != nil {
				t.Fatal(err)
			}
			again, _ := json.Marshal(got)
			if string(again) != string(text) {
				t.Fatalf("%s became %s", text, again)
			}
		}
	})
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{"a: 1\nb: [x, {y: 'z'}]\n", "- |\n  x\n- >-\n  y\n", `{"a": "\ud83d\ude00"}`, "a: \"b\n  c\"\n# d",
		"- - -\n", "a:\n- b\n-"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := Decode(data)
		if err != nil {
			return
		}
		text, err := marshal(v)
		if err != nil {
			t.Fatalf("%q was read and can not be written: %v", data, err)
		}
		if !json.Valid(text) {
			t.Fatalf("%q became %q, which is not JSON", data, text)
		}
	})
}
