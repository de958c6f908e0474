type sandboxCase struct {
	Name, Label, Heading, Stdin string
	Args                        []json.RawMessage
	Want                        any
	Tolerance                   float64
	Trim                        bool  `json:"ignore_trailing_space"`
	ExitCode                    int   `json:"exit_code"`
	Timeout                     int64 `json:"timeout_ms"`
}

type sandboxReport struct {
	OK        bool
	Got, Note string
}

// The harness runs before main, when everything of the snippet is initialised, and ends the
// process; a case of a whole program goes on to the snippet's own main.
func init() {
	var cases []sandboxCase
	dec := json.NewDecoder(strings.NewReader(sandboxCases))
	dec.UseNumber()
	if err := dec.Decode(&cases); err != nil {
		panic(err)
	}
	number, isChild := os.LookupEnv("SANDBOX_CASE")
	if !isChild {
		os.Exit(sandboxMain(cases))
	}
	result := os.Getenv("SANDBOX_RESULT")
	os.Unsetenv("SANDBOX_CASE")
	os.Unsetenv("SANDBOX_RESULT")
	if sandboxKind == "stdio" {
		return
	}
	i, _ := strconv.Atoi(number)
	text, _ := json.Marshal(sandboxCall(&cases[i]))
	if err := os.WriteFile(result, text, 0o600); err != nil {
		panic(err)
	}
	os.Exit(0)
}

// sandboxCall calls the function for one case, in a process of its own.
func sandboxCall(c *sandboxCase) (report sandboxReport) {
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(os.Stderr, "panic: %v\n\n%s", p, debug.Stack())
			report = sandboxReport{Note: fmt.Sprintf("panic: %v", p)}
		}
	}()
	f := reflect.ValueOf(sandboxFunction)
	if f.Kind() != reflect.Func {
		return sandboxReport{Note: "the snippet's function is no function"}
	}
	t := f.Type()
	fixed := t.NumIn()
	if t.IsVariadic() {
		fixed--
	}
	if len(c.Args) < fixed || len(c.Args) > fixed && !t.IsVariadic() {
		return sandboxReport{Note: fmt.Sprintf("the function takes %d arguments, the case has %d", t.NumIn(), len(c.Args))}
	}
	in := make([]reflect.Value, len(c.Args))
	for i, arg := range c.Args {
		param := t.In(min(i, t.NumIn()-1))
		if i >= fixed {
			param = t.In(fixed).Elem()
		}
		v := reflect.New(param)
		if param.Kind() == reflect.Int32 && len(arg) > 0 && arg[0] == '"' { // a rune is given as a letter
			var s string
			if json.Unmarshal(arg, &s) == nil && utf8.RuneCountInString(s) == 1 {
				r, _ := utf8.DecodeRuneInString(s)
				arg = []byte(strconv.Itoa(int(r)))
			}
		}
		if err := json.Unmarshal(arg, v.Interface()); err != nil {
			return sandboxReport{Note: fmt.Sprintf("argument %d is no %v: %v", i+1, param, err)}
		}
		in[i] = v.Elem()
	}
	out := f.Call(in)
	// An error that comes last is not a result, but says that there is none.
	if n := len(out); n > 0 && t.Out(n-1) == reflect.TypeFor[error]() {
		if err, _ := out[n-1].Interface().(error); err != nil {
			return sandboxReport{Note: fmt.Sprintf("error: %v", err)}
		}
		out = out[:n-1]
	}
	var got any
	switch len(out) {
	case 0:
	case 1:
		got = out[0].Interface()
	default:
		list := make([]any, len(out))
		for i := range out {
			list[i] = out[i].Interface()
		}
		got = list
	}
	value, err := sandboxPlain(got)
	if err != nil {
		return sandboxReport{Note: fmt.Sprintf("the result is a %T, which cases can not express: %v", got, err)}
	}
	return sandboxReport{sandboxSame(c.Want, value, c), sandboxShow(value), "wrong result"}
}

// sandboxPlain sends a value through JSON. A nil slice is an empty list, and bytes are text.
func sandboxPlain(v any) (any, error) {
	switch r := reflect.ValueOf(v); {
	case r.Kind() == reflect.Slice && r.Len() == 0:
		return []any{}, nil
	case r.Kind() == reflect.Slice && r.Type().Elem().Kind() == reflect.Uint8:
		return string(r.Bytes()), nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var out any
	return out, dec.Decode(&out)
}

func sandboxSame(want, got any, c *sandboxCase) bool {
	switch w := want.(type) {
	case json.Number:
		g, ok := got.(json.Number)
		return ok && sandboxSameNumber(string(w), string(g), c.Tolerance)
	case string:
		g, ok := got.(string)
		return ok && sandboxClean(w, c) == sandboxClean(g, c)
	case []any:
		g, ok := got.([]any)
		if !ok || len(w) != len(g) {
			return false
		}
		for i := range w {
			if !sandboxSame(w[i], g[i], c) {
				return false
			}
		}
		return true
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok || len(w) != len(g) {
			return false
		}
		for key := range w {
			if item, ok := g[key]; !ok || !sandboxSame(w[key], item, c) {
				return false
			}
		}
		return true
	}
	return want == got
}

func sandboxSameNumber(want, got string, tolerance float64) bool {
	w, ok1 := new(big.Int).SetString(want, 10)
	g, ok2 := new(big.Int).SetString(got, 10)
	if ok1 && ok2 && tolerance == 0 {
		return w.Cmp(g) == 0
	}
	a, _ := strconv.ParseFloat(want, 64)
	b, _ := strconv.ParseFloat(got, 64)
	return a == b || a-b <= tolerance && b-a <= tolerance
}

func sandboxClean(text string, c *sandboxCase) string {
	if !c.Trim {
		return text
	}
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " \t\r")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

func sandboxShow(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err.Error()
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// sandboxRun runs one case; it gives what is wrong (or nothing), what the case gave and what it printed.
func sandboxRun(number int, c *sandboxCase, work string) (note string, got *string, stdout, stderr string) {
	name := func(kind string) string { return filepath.Join(work, fmt.Sprint(number, ".", kind)) }
	self, err := os.Executable()
	if err != nil {
		return err.Error(), nil, "", ""
	}
	var args []string
	if sandboxKind == "stdio" {
		for _, raw := range c.Args {
			var s string
			_ = json.Unmarshal(raw, &s)
			args = append(args, s)
		}
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), fmt.Sprint("SANDBOX_CASE=", number), "SANDBOX_RESULT="+name("result"))
	cmd.Stdin = strings.NewReader(c.Stdin)
	// Files, not pipes: what a case leaves running can not hold up the end.
	if in, err := os.Create(name("in")); err == nil {
		defer in.Close()
		in.WriteString(c.Stdin)
		in.Seek(0, 0)
		cmd.Stdin = in
	}
	out, err1 := os.Create(name("out"))
	errs, err2 := os.Create(name("err"))
	if err1 != nil || err2 != nil {
		return fmt.Sprint(err1, err2), nil, "", ""
	}
	defer out.Close()
	defer errs.Close()
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err.Error(), nil, "", ""
	}
	late := make(chan bool, 1)
	timer := time.AfterFunc(time.Duration(c.Timeout)*time.Millisecond, func() {
		late <- true
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	})
	_ = cmd.Wait()
	timer.Stop()
	syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what the case left running, too
	stdout, stderr = sandboxRead(name("out")), sandboxRead(name("err"))
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case len(late) > 0:
		return fmt.Sprintf("timed out after %d ms", c.Timeout), nil, stdout, stderr
	case status.Signaled():
		return fmt.Sprintf("killed by signal %d", status.Signal()), nil, stdout, stderr
	}
	code := status.ExitStatus()
	if sandboxKind == "call" {
		text, err := os.ReadFile(name("result"))
		var report sandboxReport
		switch {
		case err != nil:
			return fmt.Sprintf("exited with code %d before the function returned", code), nil, stdout, stderr
		case json.Unmarshal(text, &report) != nil:
			return "the result can not be read", nil, stdout, stderr
		case report.OK:
			return "", nil, "", ""
		case report.Note == "wrong result":
			got = &report.Got
		}
		return report.Note, got, stdout, stderr
	}
	var notes []string
	if code != c.ExitCode {
		notes = append(notes, fmt.Sprintf("exit code %d, not %d", code, c.ExitCode))
	}
	if want, _ := c.Want.(string); sandboxClean(want, c) != sandboxClean(stdout, c) {
		notes = append(notes, "wrong output")
	}
	return strings.Join(notes, "; "), &stdout, "", stderr
}

func sandboxRead(name string) string {
	const most = 8 << 20
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	var b bytes.Buffer
	_, _ = b.ReadFrom(&sandboxLimited{f, most})
	return b.String()
}

type sandboxLimited struct {
	f    *os.File
	left int
}

func (l *sandboxLimited) Read(p []byte) (int, error) {
	if len(p) > l.left {
		p = p[:l.left]
	}
	if len(p) == 0 {
		return 0, fmt.Errorf("enough")
	}
	n, err := l.f.Read(p)
	l.left -= n
	return n, err
}

// sandboxDiff is a unified diff of one hunk.
func sandboxDiff(wantText, gotText string) []string {
	want, got := strings.Split(wantText, "\n"), strings.Split(gotText, "\n")
	head, tail := 0, 0
	for head < len(want) && head < len(got) && want[head] == got[head] {
		head++
	}
	if head == len(want) && head == len(got) {
		return nil
	}
	for tail < len(want)-head && tail < len(got)-head && want[len(want)-1-tail] == got[len(got)-1-tail] {
		tail++
	}
	before, after := max(0, head-3), max(0, tail-3)
	lines := []string{"--- want", "+++ got", fmt.Sprintf("@@ -%d,%d +%d,%d @@", before+1, len(want)-after-before, before+1, len(got)-after-before)}
	for _, line := range want[before:head] {
		lines = append(lines, " "+line)
	}
	lines = append(lines, sandboxMiddle(want[head:len(want)-tail], got[head:len(got)-tail])...)
	for _, line := range want[len(want)-tail : len(want)-after] {
		lines = append(lines, " "+line)
	}
	return sandboxShorten(lines)
}

// sandboxMiddle finds what two texts without common ends have in common: the longest common subsequence.
func sandboxMiddle(want, got []string) (lines []string) {
	common := make([][]int, len(want)+1)
	if len(want)*len(got) <= 1e6 {
		for i := range common {
			common[i] = make([]int, len(got)+1)
		}
		for i := len(want) - 1; i >= 0; i-- {
			for j := len(got) - 1; j >= 0; j-- {
				if want[i] == got[j] {
					common[i][j] = common[i+1][j+1] + 1
				} else {
					common[i][j] = max(common[i+1][j], common[i][j+1])
				}
			}
		}
	}
	i, j := 0, 0
	for i < len(want) || j < len(got) {
		switch {
		case common[0] != nil && i < len(want) && j < len(got) && want[i] == got[j]:
			lines = append(lines, " "+want[i])
			i, j = i+1, j+1
		case j == len(got) || i < len(want) && (common[0] == nil || common[i+1][j] >= common[i][j+1]):
			lines = append(lines, "-"+want[i])
			i++
		default:
			lines = append(lines, "+"+got[j])
			j++
		}
	}
	return lines
}

func sandboxShorten(lines []string) []string {
	const most = 200
	if len(lines) <= most {
		return lines
	}
	return append(lines[:most:most], fmt.Sprintf("… %d more lines", len(lines)-most))
}

func sandboxQuoted(title, text string) (lines []string) {
	if text == "" {
		return nil
	}
	lines = append(lines, title+":")
	for _, line := range sandboxShorten(strings.Split(strings.TrimRight(text, "\n"), "\n")) {
		lines = append(lines, "  | "+line)
	}
	return lines
}

func sandboxMain(cases []sandboxCase) int {
	signal.Ignore(syscall.SIGPIPE)
	work, err := os.MkdirTemp("", "cases-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(work)
	fmt.Println(cases[0].Heading + "  RESULT     TIME  NOTE")
	failed := 0
	var details []string
	for number := range cases {
		c := &cases[number]
		start := time.Now()
		note, got, stdout, stderr := sandboxRun(number, c, work)
		state := "pass"
		first, _, _ := strings.Cut(note, "\n")
		if note != "" {
			state = "FAIL"
		}
		fmt.Println(strings.TrimRight(fmt.Sprintf("%s  %s  %6d ms  %s", c.Label, state, time.Since(start).Milliseconds(), first), " "))
		if note == "" {
			continue
		}
		failed++
		details = append(details, "", "FAIL "+c.Name+": "+note)
		if got != nil {
			details = append(details, sandboxDiff(sandboxShow(c.Want), *got)...)
		}
		details = append(append(details, sandboxQuoted("stdout", stdout)...), sandboxQuoted("stderr", stderr)...)
	}
	fmt.Println(strings.Join(append(details, "", fmt.Sprintf("%d passed, %d failed", len(cases)-failed, failed)), "\n"))
	if failed > 0 {
		return 1
	}
	return 0
}
