package typescript

import "github.com/evanw/esbuild/pkg/api"

// Warm compiles a small program once, in a process that waits for its program: later builds find the compiler's tables,
// goroutines and memory.
func Warm() {
	api.Build(api.BuildOptions{
		Stdin: &api.StdinOptions{
			Contents: "interface A { b: number }\nconst a: A = { b: 1 };\nclass C<T> { constructor(readonly t: T) {} }\nexport async function " +
				"f(): Promise<string> { return `${a.b} ${new C(a).t}` }\n",
			Loader: api.LoaderTS, Sourcefile: "warm.ts",
		},
		Bundle: true, Platform: api.PlatformNode, Format: api.FormatESModule, Engines: []api.Engine{{Name: api.EngineNode, Version: oldestNode}},
		Charset: api.CharsetUTF8, Sourcemap: api.SourceMapExternal, Outdir: "/", LogLevel: api.LogLevelSilent,
	})
}
