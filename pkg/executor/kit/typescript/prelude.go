package typescript

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// prelude is the code before the user's code, on whole lines of its own. It sets properties of globalThis: a
// variable of the module could collide with one of the user's.
func (p *program) prelude(entry string, f *files) string {
	var b strings.Builder
	// Programs compare this with their own name to find out whether they were started or imported.
	b.WriteString("globalThis.process.argv[1]=" + quote(entry) + ";\n")
	if f.require {
		b.WriteString(`import{createRequire as __kit_createRequire}from"node:module";globalThis.require??=__kit_createRequire(` +
			quote(fileURL(entry)) + ");\n")
	}
	if f.module {
		b.WriteString(`globalThis.module??={id:".",exports:{},children:[],paths:[],loaded:false,filename:` + quote(entry) +
			"};globalThis.exports??=globalThis.module.exports;\n")
	}
	if f.threads || f.forks {
		b.WriteString(`import{syncBuiltinESMExports as __kit_sync}from"node:module";import{fileURLToPath as __kit_path}from"node:url";` +
			`import{resolve as __kit_resolve}from"node:path";`)
		b.WriteString("const __kit_modules=new Map([")
		for _, modules := range []map[string]string{p.outputs, p.aliases} {
			for _, file := range slices.Sorted(maps.Keys(modules)) {
				b.WriteString("[" + quote(file) + "," + quote(modules[file]) + "],")
			}
		}
		b.WriteString(`]);const __kit_find=f=>{try{return __kit_modules.get(f instanceof ` +
			`URL||/^file:/.test(f)?__kit_path(f):__kit_resolve(f))??f}catch{return f}};` + "\n")
	}
	if f.threads {
		b.WriteString(`import __kit_threads from"node:worker_threads";__kit_threads.Worker=class Worker extends ` +
			`__kit_threads.Worker{constructor(f,o){super(o?.eval?f:__kit_find(f),o)}};__kit_sync();` + "\n")
	}
	if f.forks {
		b.WriteString(`import __kit_child from"node:child_process";{const fork=__kit_child.fork;__kit_child.fork=(f,` +
			`...more)=>fork(__kit_find(f),...more)};`)
		// node FILE does the same; after node --eval nothing is started. util.promisify needs a form of its own.
		b.WriteString(`for(const name of["spawn","spawnSync","execFile","execFileSync"]){const ` +
			`own=Symbol.for("nodejs.util.promisify.custom"),swap=start=>(command,args,...more)=>{` +
			`if(Array.isArray(args)&&(command===process.execPath||command==="node")){const ` +
			`i=args.findIndex(a=>/^-(e|p|-eval|-print)/.test(a)||__kit_find(a)!==a);` +
			`args=args.map((a,j)=>j===i?__kit_find(a):a)}return start(command,args,...more)},old=__kit_child[name];` +
			`__kit_child[name]=swap(old);if(old[own])__kit_child[name][own]=swap(old[own])};__kit_sync();` + "\n")
	}
	if f.cluster {
		b.WriteString(`import __kit_cluster from"node:cluster";if(__kit_cluster.isPrimary)__kit_cluster.setupPrimary({exec:` +
			quote(p.outputs[entry]) + "});\n")
	}
	return b.String()
}

// startedFile is a file that is started as a thread or process, with the name that the program uses for it.
type startedFile struct{ named, file string }

// startedFiles searches a text for the names of files: strings that are no imports, and name an existing file. One too many
// costs a build; a name that the program composes at run time is not found.
func startedFiles(dir string, text []byte) []startedFile {
	var found []startedFile
	names := regexp.MustCompile("(from|import|require\\()?\\s*[\"'`]([^\"'`\\n]{1,500}\\.[cm]?[jt]s)[\"'`]")
	for _, m := range names.FindAllSubmatch(text, 100) {
		if len(m[1]) > 0 {
			continue
		}
		named := string(m[2])
		if !filepath.IsAbs(named) {
			named = filepath.Join(dir, named)
		}
		// As in imports, x.js may be the name of x.ts.
		candidates := []string{named}
		if stem, ok := strings.CutSuffix(named, "js"); ok {
			candidates = append(candidates, stem+"ts")
		}
		for _, file := range candidates {
			if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() {
				found = append(found, startedFile{named: named, file: file})
				break
			}
		}
	}
	return found
}
