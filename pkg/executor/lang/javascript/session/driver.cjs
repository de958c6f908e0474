// The driver of a JavaScript or TypeScript session: it executes cells in the main thread, and speaks the protocol of pkg/session/protocol.
// reader.cjs, a thread, reads the frames. answers.cjs has what not every session needs. See session.go.
//
// Usage: node driver.cjs LANGUAGE DESCRIPTOR PATH-OF-reader.cjs PATH-OF-answers.cjs [PATH-OF-KIT]
'use strict';
(function () {
  // A declaration of a cell hides a global name from all code, and a cell may replace functions. The driver has names for what it uses.
  const global = globalThis;
  const { Atomics, BigInt, Buffer, Error, JSON, Map, Number, Object, Promise, Set, String, SyntaxError, TypeError } = global;
  const { process, setImmediate } = global;
  const builtins = { Buffer, Function: global.Function, Object, RegExp: global.RegExp, Set, String };
  const { load, store, compareExchange, wait } = Atomics;
  const { from, concat, byteLength } = Buffer;
  const { stringify } = JSON;
  const [, , language, descriptor, readerPath, answersPath, kit] = process.argv;
  const { MessageChannel, Worker, receiveMessageOnPort } = require('node:worker_threads');
  const SOCKET = Number(descriptor);

  // What the driver shares with its reader.
  const flags = { LOCK: 0, ENDED: 1, SYNC: 2, ARRIVED: 3, WANTED: 4 };
  const { LOCK, ENDED, SYNC, ARRIVED, WANTED } = flags;
  const shared = new Int32Array(new SharedArrayBuffer(64));
  const { port1: port, port2 } = new MessageChannel();
  const reader = new Worker(readerPath, {
    workerData: { port: port2, shared, flags, socket: SOCKET, kit }, transferList: [port2],
    execArgv: ['--expose-internals'], name: 'session', // acorn is there
  });
  reader.on('error', (e) => {
    print(`sandbox-run: the reader of the session: ${e?.stack ?? e}\n`);
    leave(1);
  });
  reader.unref(); // the port keeps the process

  const fs = require('node:fs');
  const inspector = require('node:inspector');
  const Module = require('node:module');
  const { SourceMap } = Module;
  const path = require('node:path');
  const { inspect } = require('node:util');
  const { writeSync, fstatSync } = fs;
  const exit = process.exit.bind(process), leave = process.reallyExit.bind(process), tick = process._tickCallback;
  const LIMIT_TEXT = 1 << 20; // characters of a value's text
  const LIMIT_MESSAGE = 8 << 10; // characters of an error's message
  const LIMIT_SOURCES = 1000; // cells whose text is kept for traces

  // Frames. Interrupts end all JavaScript on the stack, at a loop or a call. What must not end half-way holds the lock, which the reader
  // takes to interrupt. A cell that writes one frame after the other holds it most of the time, and leaves it to a reader that wants it.
  const nap = new Int32Array(new SharedArrayBuffer(4));
  let depth = 0;
  let unsent = null;

  function hold() {
    if (depth === 0) {
      if (load(shared, WANTED) === 1) wait(shared, WANTED, 1, 100);
      while (compareExchange(shared, LOCK, 0, 1) !== 0);
    }
    depth++;
    for (let i = 0; i < 2; i++); // an interrupt that the reader has sent before takes effect here
  }

  function release() {
    if (--depth === 0) store(shared, LOCK, 0);
  }

  function send(kind, id, value) {
    const body = stringify(value);
    const frame = from(`${kind} ${id} ${byteLength(body)}\n${body}`);
    hold();
    unsent = unsent === null ? frame : concat([unsent, frame]);
    while (unsent !== null) {
      try {
        const n = writeSync(SOCKET, unsent);
        unsent = n === unsent.length ? null : unsent.subarray(n);
      } catch (e) {
        if (e.code !== 'EAGAIN') leave(1); // the session has ended, or the cell has closed its descriptor
        wait(nap, 0, 0, 1);
      }
    }
    release();
  }

  // Work: the cell or the question that is under way.
  let work = null;
  const sources = new Map(); // text and map of lines, by cell
  const identity = fstatSync(SOCKET, { bigint: true }).ino;
  let last; // the last result

  function begin(message) {
    work = { kind: message.kind, id: message.id, turn: message.turn };
  }

  // end answers. Interrupts that are on their way take effect before, or not at all.
  function end(kind, value) {
    hold();
    const { id, turn } = work;
    if (work.kind === 'execute' && !isConnected()) {
      print('sandbox-run: the cell has closed the descriptor of the session\n');
      leave(1);
    }
    work = null;
    asking = prompting = false; // the session drops the question
    store(shared, SYNC, 0);
    store(shared, ENDED, turn);
    send(kind, id, value);
    release();
    if (later.length > 0) setImmediate(() => handle(later.shift()));
  }

  function isConnected() {
    try {
      return fstatSync(SOCKET, { bigint: true }).ino === identity;
    } catch {
      return false;
    }
  }

  port.on('message', handle);

  const later = []; // messages that came while there was other work

  function handle(message) {
    if (work !== null && message.body !== undefined && message.kind !== 'close') {
      later.push(message);
      return;
    }
    switch (message.kind) {
      case 'interrupt':
        depth = 0; // an interrupted section
        store(shared, LOCK, 0);
        if (message.lost && load(shared, ENDED) < message.turn && work?.turn !== message.turn) { // with the JavaScript that got it
          later.length = 0;
          begin({ kind: message.of, id: message.id, turn: message.turn });
        }
        if (work?.turn === message.turn) interrupted();
        return;
      case 'line': return takeLine(message.line);
      case 'built': return built?.(message);
      case 'close': return exit(0);
      case 'execute':
        begin(message);
        return execute(message);
      case 'check': case 'complete': case 'inspect': case 'variables': case 'packages':
        begin(message);
        return end('reply', answer(message));
    }
  }

  function interrupted() {
    if (work.kind !== 'execute') return end('reply', tools().empty(work.kind));
    completeWrites();
    print('Interrupted\n');
    end('done', { ok: false, status: 1, interrupted: true, error: { name: 'Interrupted', message: 'the cell was interrupted' } });
  }

  function answer(message) {
    if (message.kind === 'check') return tools().checked(message);
    if (message.kind === 'packages') {
      roots.splice(1, 0, message.body);
      return {};
    }
    try {
      return tools().answer(message);
    } catch { // such as a broken prototype
      return tools().empty(message.kind);
    }
  }

  let loaded;
  function tools() {
    loaded ??= require(answersPath)({ post, valueOf, initial, global, builtins });
    delete require.cache[answersPath];
    return loaded;
  }

  // Evaluation. V8's REPL mode has await at the top level, and redeclares names.
  const session = new inspector.Session();
  session.connect();

  function post(method, parameters) {
    let answer;
    session.post(method, parameters, (error, made) => { answer = error === null ? made : undefined; });
    return answer;
  }

  let caught, guarded;
  global.__sink = (value) => { caught = value; };
  const sink = post('Runtime.evaluate', { expression: '__sink' }).result.objectId;
  delete global.__sink;
  Object.defineProperty(global, '__sandbox_guarded', { value() {
    const f = guarded;
    depth = 0;
    store(shared, LOCK, 0);
    f();
    tick(); // else Node calls them between two immediates
    hold();
  } });

  // callGuarded calls foreign code from a section that holds the lock. An interrupt ends JavaScript up to here only, and callGuarded
  // returns false: Node's queue of immediates does not survive more.
  function callGuarded(f) {
    const before = depth;
    let failed, answer;
    guarded = f;
    session.post('Runtime.evaluate', { expression: '__sandbox_guarded()' }, (error, made) => {
      failed = error;
      answer = made;
    });
    if (depth === 0) hold();
    depth = before;
    if (failed !== null) return false;
    if (answer.exceptionDetails !== undefined) throw valueOf(answer.exceptionDetails.exception);
    return true;
  }

  // valueOf returns the value that the inspector describes.
  function valueOf(remote) {
    if (remote.objectId !== undefined) {
      const { objectId } = remote;
      post('Runtime.callFunctionOn', { functionDeclaration: 'function (v) { this(v) }', objectId: sink, arguments: [{ objectId }] });
      const value = caught;
      caught = undefined;
      return value;
    }
    const text = remote.unserializableValue;
    if (text === undefined) return remote.value;
    return remote.type === 'bigint' ? BigInt(text.slice(0, -1)) : Number(text);
  }

  function execute(message) {
    const { id, turn, code, source, map, refused } = message;
    if (sources.size >= LIMIT_SOURCES) sources.delete(sources.keys().next().value);
    sources.set(id, { source, map });
    mapped.delete(id - LIMIT_SOURCES);
    if (refused !== undefined) {
      print(refused.text);
      finish({ ok: false, status: 1, error: { name: 'SyntaxError', message: clip(refused.message), line: refused.line } });
      return;
    }
    stream?.want();
    if (!process.listeners('uncaughtException').includes(uncaught)) process.on('uncaughtException', uncaught); // a cell may remove all
    store(shared, SYNC, 1);
    const expression = `${code}\n//# sourceURL=<cell_${id}>`;
    session.post('Runtime.evaluate', { expression, replMode: true, objectGroup: 'cell' }, (error, made) => settle(turn, error, made));
    store(shared, SYNC, 0);
  }

  function settle(turn, error, made) {
    if (work === null || work.turn !== turn) { // of a cell that was interrupted, or failed otherwise
      if (made?.exceptionDetails !== undefined) print(describe(valueOf(made.exceptionDetails.exception)).text);
      return;
    }
    setImmediate(conclude, turn, error, made); // rejections without a handler are reported before
  }

  function conclude(turn, error, made) {
    hold();
    if (work !== null && work.turn === turn) report(error, made);
    release();
  }

  function report(error, made) {
    if (error !== null) return interrupted();
    const details = made.exceptionDetails;
    if (details !== undefined) return fail(valueOf(details.exception), details);
    const value = valueOf(made.result);
    if (value !== undefined) {
      try {
        if (!callGuarded(() => show(value, true))) return interrupted();
      } catch (e) {
        return fail(e);
      }
      if (Object.is(global._, last)) { // else the user has a variable of this name
        last = value;
        Object.defineProperty(global, '_', { value, writable: true, configurable: true, enumerable: false });
      }
    }
    if (made.result.objectId !== undefined) post('Runtime.releaseObjectGroup', { objectGroup: 'cell' });
    finish({ ok: true });
  }

  function fail(error, details) {
    let about;
    hold();
    if (callGuarded(() => { about = describe(error, details, work.id); })) {
      print(about.text);
      post('Runtime.releaseObjectGroup', { objectGroup: 'cell' });
      finish({ ok: false, status: 1, error: { name: about.name, message: about.message, line: about.line } });
    } else {
      interrupted();
    }
    release();
  }

  // completeWrites ends a write of a stream that an interrupt has left half-way: the stream would hold all later output back. Writes are
  // synchronous, so that none is under way here.
  function completeWrites() {
    for (const { _handle: handle, _writableState: state } of [process.stdout, process.stderr]) {
      try {
        if (handle?.setBlocking && state.writing) state.onwrite();
      } catch {} // foreign code may have changed the stream
    }
  }

  // finish ends the cell after its output.
  function finish(done) {
    const streams = [process.stdout, process.stderr].filter((s) => s._handle && s.writableLength > 0); // others are synchronous
    if (streams.length === 0) return end('done', done);
    const { turn } = work;
    let left = streams.length;
    for (const stream of streams) {
      stream.write('', () => { if (--left === 0 && work !== null && work.turn === turn) end('done', done); });
    }
  }

  // Output. The console is not V8's: that keeps what it prints, and its stacks, while an inspector is connected.
  for (const stream of [process.stdout, process.stderr]) stream._handle?.setBlocking?.(true);
  const own = new global.console.Console({ stdout: process.stdout, stderr: process.stderr });
  for (const name of Object.keys(own)) {
    if (typeof own[name] === 'function') global.console[name] = own[name];
  }

  function print(text) {
    let data = from(text);
    while (data.length > 0) {
      try {
        data = data.subarray(writeSync(2, data));
      } catch (e) {
        if (e.code !== 'EAGAIN') return; // closed by the cell
        wait(nap, 0, 0, 1);
      }
    }
  }

  function clip(text, limit = LIMIT_MESSAGE) {
    return text.length > limit ? text.slice(0, limit) : text;
  }

  function textOf(value) {
    const text = inspect(value, { showProxy: true, maxStringLength: null });
    if (text.length <= LIMIT_TEXT) return text;
    return `${text.slice(0, LIMIT_TEXT)}\n... (${LIMIT_TEXT} of ${text.length} characters shown)`;
  }

  function show(value, result) {
    const text = textOf(value);
    if (work?.kind !== 'execute') return print(text + '\n');
    send('display', work.id, result ? { data: { 'text/plain': text }, result } : { data: { 'text/plain': text } });
  }

  // display shows values.
  function display(...values) {
    for (const value of values) show(value, false);
  }

  // Errors. Traces name cells and lines of them, and have no frames of the driver.
  const mapped = new Map(); // the SourceMap of a cell

  function place(id, line, column) {
    const map = sources.get(id)?.map;
    if (map === undefined) return [line, column];
    if (!mapped.has(id)) mapped.set(id, new SourceMap(map));
    const found = mapped.get(id).findEntry(line - 1, column - 1);
    return found.originalLine === undefined ? [line, column] : [found.originalLine + 1, found.originalColumn + 1];
  }

  const cellFrame = /<cell_(\d+)>(?::(\d+):(\d+))?/g;

  function nameCells(text) {
    return text.replace(cellFrame, (_, id, line, column) =>
      line === undefined ? `<cell ${id}>` : `<cell ${id}>:${place(Number(id), Number(line), Number(column)).join(':')}`);
  }

  function headOf(error) {
    try {
      const head = Error.prototype.toString.call(error);
      const { code, name } = error;
      return typeof code === 'string' && code.startsWith('ERR_') && !head.includes(code) ? head.replace(name, `${name} [${code}]`) : head;
    } catch {
      return '<error>';
    }
  }

  const hidden = new Set([__filename, answersPath]);

  function prepareStackTrace(error, trace) {
    const lines = [];
    for (const site of trace) {
      const file = site.getFileName();
      if (file === 'node:inspector' || (file === __filename && site.getFunctionName() === 'conclude')) break; // what called the cell
      if (!hidden.has(file)) lines.push(`\n    at ${site}`);
    }
    return headOf(error) + nameCells(lines.join(''));
  }
  Object.defineProperty(Error, 'prepareStackTrace', { value: prepareStackTrace, writable: true, configurable: true, enumerable: false });

  // describe returns the text that Node prints for an error that nothing has caught, and what the session reports of it.
  function describe(error, details, id) {
    const report = { name: 'Error', message: '', line: undefined, text: '' };
    let stack = '', text;
    const isError = error instanceof Error || Object.prototype.toString.call(error) === '[object Error]';
    try {
      if (isError) {
        stack = String(error.stack);
        report.name = clip(String(error.name), 1000);
        report.message = clip(String(error.message));
        text = stack.includes('\n    at ') ? inspect(error) : stack; // inspect puts the latter in brackets
      } else {
        text = inspect(error);
        report.message = clip(text);
        text = `Uncaught:\n${text}`;
      }
    } catch {
      text ??= 'Uncaught: <an error that can not be shown>';
    }
    const framesOf = (trace) => [...trace.matchAll(/<cell (\d+)>:(\d+):(\d+)/g)].map((m) => m.slice(1).map(Number));
    let frames = framesOf(stack);
    if (frames.length === 0 && isError && calls.has(error)) frames = framesOf(calls.get(error));
    const of = /^<cell_(\d+)>$/.exec(details?.url ?? '');
    const hasPlace = details !== undefined && (of !== null || (!details.url && (!isError || report.name === 'SyntaxError'))); // of V8's own
    if (frames.length === 0 && hasPlace) {
      const cell = of === null ? id : Number(of[1]);
      frames.push([cell, ...place(cell, details.lineNumber + 1, details.columnNumber + 1)]);
    }
    report.line = frames.find(([cell]) => cell === id)?.[1];
    if (frames.length > 0) {
      const [cell, line, column] = frames[0];
      const code = sources.get(cell)?.source?.split('\n')[line - 1];
      if (code !== undefined && code.length < 1000) {
        report.text = `<cell ${cell}>:${line}\n${code}\n${code.slice(0, column - 1).replace(/[^\t]/g, ' ')}^\n\n`;
      }
    }
    report.text += `${clip(text, LIMIT_TEXT)}\n`;
    return report;
  }

  function uncaught(error) {
    if (error instanceof TypeError && error.message.includes("'_idleNext'")) { // would be thrown again and again
      print('sandbox-run: the interrupt has damaged the event loop\n');
      leave(1);
    }
    if (process.listenerCount('uncaughtException') > 1) return; // the cell's own
    if (work?.kind === 'execute') fail(error);
    else print(describe(error).text);
  }
  process.on('uncaughtException', uncaught);

  // Input. The session's user has the lines.
  let asking = false; // a question has no answer yet
  let stream; // process.stdin
  let wanted = false; // by the stream
  let line; // the answer to prompt

  function ask(prompt) {
    asking = true;
    send('input', work.id, { prompt: clip(String(prompt)) });
  }

  function takeLine(text) {
    asking = false;
    if (line === undefined && prompting) {
      line = text;
    } else if (wanted) {
      wanted = false;
      stream.push(text === null ? null : text + '\n');
    }
  }

  let prompting = false;

  // prompt asks the user for a line, and waits for it. It returns null at the end of the input.
  function prompt(message = '') {
    if (work?.kind !== 'execute') return null;
    const { turn } = work;
    for (prompting = false; ; ) {
      if (!asking && !prompting) {
        prompting = true;
        line = undefined;
        ask(message);
      }
      const seen = load(shared, ARRIVED);
      const received = receiveMessageOnPort(port);
      if (received === undefined) wait(shared, ARRIVED, seen);
      else if (received.message.kind !== 'interrupt') handle(received.message); // which ends all JavaScript on the stack
      if (prompting && line !== undefined) {
        const text = line;
        prompting = false;
        line = undefined;
        return text;
      }
      if (work?.turn !== turn) return null;
    }
  }

  function makeStdin() {
    const { Readable } = require('node:stream');
    const want = () => setImmediate(() => {
      const reads = !stream.isPaused() || stream.listenerCount('readable') > 0;
      if (wanted && reads && !asking && work?.kind === 'execute') ask('');
    });
    stream = new Readable({ highWaterMark: 0, read() { wanted = true; want(); } });
    stream.on('resume', want);
    stream.fd = 0;
    stream.want = want;
    return stream;
  }
  Object.defineProperty(process, 'stdin', { get: () => stream ?? makeStdin(), configurable: true, enumerable: true });

  // Modules. Cells import and require from the working directory, and then from where packages were added.
  const roots = [process.cwd()];
  const importers = new Map();

  function importer(root) {
    if (!importers.has(root)) {
      const at = path.join(root, '<cell>');
      hidden.add(at);
      const made = new Module(at);
      made._compile('module.exports = { import: (name, options) => options ? import(name, options) : import(name), meta: {} }', at);
      importers.set(root, { import: made.exports.import, require: Module.createRequire(at) });
    }
    return importers.get(root);
  }

  const plain = (name) => {
    if (typeof name !== 'string' || !name.startsWith('npm:')) return name;
    return name.slice(4).replace(/^\/?((?:@[^/]+\/)?[^/@]+)(?:@[^/]*)?/, '$1'); // without the version
  };
  const isMissing = (e) => e?.code === 'ERR_MODULE_NOT_FOUND' || e?.code === 'MODULE_NOT_FOUND';

  const calls = new global.WeakMap(); // where a cell has called for what has failed

  function importModule(...args) {
    const here = new Error();
    return importFrom(...args).catch((e) => {
      if (typeof e === 'object' && e !== null) calls.set(e, here.stack);
      throw e;
    });
  }

  async function importFrom(name, options, wanted = []) {
    const specifier = language === 'typescript' ? await compiled(plain(name)) : plain(name);
    let made, missing;
    for (const root of roots) {
      try {
        made = await importer(root).import(specifier, options);
        break;
      } catch (e) {
        if (!isMissing(e)) throw e;
        missing ??= e;
      }
    }
    if (made === undefined) throw missing;
    for (const one of wanted) {
      if (!(one in made)) throw new SyntaxError(`The requested module '${name}' does not provide an export named '${one}'`);
    }
    return made;
  }

  function requireModule(name) {
    let missing;
    for (const root of roots) {
      try {
        return importer(root).require(plain(name));
      } catch (e) {
        if (!isMissing(e)) throw e;
        missing ??= e;
      }
    }
    throw missing;
  }

  // compiled returns the module of a file of the program in TypeScript, which the kit builds, and any other name as it is.
  let built;
  let builds = 0;

  async function compiled(name) {
    if (typeof name !== 'string' || !/^(\.{0,2}\/|\.{1,2}$)/.test(name)) return name;
    const base = path.resolve(roots[0], name);
    const stem = base.replace(/\.([cm]?)js$/, '.$1ts');
    const file = [base, stem, ...['.ts', '.tsx', '.mts', '/index.ts', '/index.tsx'].map((end) => base + end)]
      .find((f) => /\.([cm]?ts|tsx)$/.test(f) && fs.existsSync(f));
    if (file === undefined) return name;
    const out = path.join('/tmp/build/cells', `${builds++}.mjs`);
    while (built !== undefined) await new Promise((resolve) => setImmediate(resolve));
    const answer = await new Promise((resolve) => {
      built = resolve;
      port.postMessage({ name: file, file, out });
    });
    built = undefined;
    if (answer.message !== undefined) throw new SyntaxError(answer.text);
    return out;
  }

  // What cells find.
  function define(name, value) {
    Object.defineProperty(global, name, { value, writable: true, configurable: true, enumerable: false });
  }
  const base = importer(roots[0]).require;
  Object.assign(requireModule, { resolve: base.resolve, cache: base.cache, extensions: base.extensions, main: undefined });
  Object.defineProperty(requireModule, 'name', { value: 'require' });
  importModule.filename = path.join(roots[0], '<cell>');
  importModule.dirname = roots[0];
  importModule.url = require('node:url').pathToFileURL(importModule.filename).href;
  define('__sandbox_import', importModule);
  define('require', requireModule);
  define('module', { exports: {}, id: '<cell>', filename: importModule.filename, loaded: false, children: [], paths: [] });
  define('exports', global.module.exports);
  define('__dirname', importModule.dirname);
  define('__filename', importModule.filename);
  const timers = require('node:timers');
  const promisify = require('node:util').promisify.custom;
  const setGuarded = (callback, ...args) => setImmediate(typeof callback !== 'function' ? callback : () => {
    hold();
    try {
      callGuarded(() => callback(...args));
    } finally {
      release();
    }
  });
  Object.defineProperties(setGuarded, { name: { value: 'setImmediate' }, [promisify]: { value: setImmediate[promisify] } });
  timers.setImmediate = global.setImmediate = setGuarded;
  define('prompt', prompt);
  define('display', display);
  define('_', undefined);
  for (const name of Module.builtinModules) {
    if (/^_|\//.test(name) || name in global) continue;
    Object.defineProperty(global, name, {
      get: () => base(name), configurable: true, enumerable: false,
      set: (value) => Object.defineProperty(global, name, { value, writable: true, configurable: true, enumerable: true }),
    });
  }
  const initial = new Set(Object.getOwnPropertyNames(global));

  process.argv.length = 1;
  delete require.cache[__filename];
  post('Runtime.evaluate', { expression: '1', replMode: true }); // compiled before the first cell
  inspect({});
  send('ready', 0, {
    protocol: 1, language, version: process.versions.node, features: ['check', 'complete', 'inspect', 'variables', 'packages'],
    interrupt: 'message', banner: `Node ${process.versions.node}`,
  });
})();
