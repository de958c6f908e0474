// The reader of a JavaScript or TypeScript session: a thread that reads the frames of the session, rewrites cells, and interrupts the main
// thread, which executes them (driver.cjs). See session.go.
'use strict';
const { workerData } = require('node:worker_threads');
const net = require('node:net');

const { port, shared, socket, kit } = workerData;
const { LOCK, ENDED, SYNC, ARRIVED, WANTED } = workerData.flags;

// Frames. Those that a running cell needs are handled at once; the others wait for their turn.
let buffered = Buffer.alloc(0);
const waiting = [];
let serving = false;
let turn = 0; // the number of the frame that the main thread handles
let cell = 0; // or another number of the frame
let kind; // of the frame
let posted = 0; // the last turn that the main thread was told of
let ended = false;

function take() {
  const end = buffered.indexOf(10);
  if (end < 0) return null;
  const [kind, id, length, argument] = buffered.toString('latin1', 0, end).split(' ');
  const whole = end + 1 + Number(length);
  if (buffered.length < whole) return null;
  const body = buffered.toString('utf8', end + 1, whole);
  buffered = buffered.subarray(whole);
  return { kind, id: Number(id), argument: Number(argument), body };
}

const stream = new net.Socket({ fd: socket, readable: true, writable: false });
stream.on('data', (data) => {
  buffered = buffered.length > 0 ? Buffer.concat([buffered, data]) : data;
  for (let frame = take(); frame !== null; frame = take()) {
    if (frame.kind === 'interrupt') {
      if (frame.id === cell && cell > 0) interrupt(turn, 0);
    } else if (frame.kind === 'input' || frame.kind === 'end_input') {
      if (frame.id === cell) post({ kind: 'line', line: frame.kind === 'input' ? frame.body : null });
    } else {
      waiting.push(frame);
      serve();
    }
  }
});
stream.on('error', finish);
stream.on('close', finish);

function finish() {
  if (ended) return;
  ended = true;
  post({ kind: 'close' });
  interrupt(turn, 0);
}

function post(message) {
  port.postMessage(message);
  Atomics.add(shared, ARRIVED, 1);
  Atomics.notify(shared, ARRIVED);
}

async function serve() {
  if (serving) return;
  serving = true;
  for (let frame = waiting.shift(); frame !== undefined; frame = waiting.shift()) {
    turn++;
    ({ id: cell, kind } = frame);
    const message = { ...frame, turn };
    if (frame.kind === 'execute') Object.assign(message, await prepare(frame));
    else if (frame.kind === 'check') message.status = await check(frame.body);
    post(message);
    posted = turn;
  }
  serving = false;
}

// Interrupts. The main thread is terminated by the inspector, which ends all JavaScript on its stack. If it waits for an event, a message
// ends the cell. If it waits for a process that it has started, that process gets SIGINT.
const STEP = 20; // milliseconds; later steps take longer, so that the main thread of a busy machine answers before it is terminated again
const PATIENCE = 3; // steps until what seems to wait for an event is terminated
const LONG = 13; // steps that take a second
const HELD = 50; // milliseconds for which a step waits for the lock
const nap = new Int32Array(new SharedArrayBuffer(4));
let interrupting = 0;

function interrupt(number, step) {
  if (step === 0 && interrupting === number) return; // already
  interrupting = number;
  if (Atomics.load(shared, ENDED) >= number) {
    want(0);
    disconnect();
    return;
  }
  const held = (step >= PATIENCE || Atomics.load(shared, SYNC) === 1) && !terminate(number);
  if (step === PATIENCE + 1 || step > LONG) interruptProcesses();
  if (ended && step > LONG) process.kill(process.pid, 'SIGKILL'); // the session has ended
  post({ kind: 'interrupt', turn: number, id: cell, of: kind, lost: posted >= number });
  if (held && !ended) setTimeout(interrupt, STEP, number, step || 1);
  else setTimeout(interrupt, STEP * 2 ** Math.max(0, Math.min(step - PATIENCE, LONG) - 5), number, step + 1);
}

function want(lock) {
  Atomics.store(shared, WANTED, lock);
  if (lock === 0) Atomics.notify(shared, WANTED);
}

let session;

// terminate returns false if the main thread keeps the lock, in which it writes frames: it is not ended then.
function terminate(number) {
  if (session === undefined) {
    session = new (require('node:inspector').Session)();
    session.connectToMainThread();
  }
  want(1);
  for (const began = Date.now(); Atomics.compareExchange(shared, LOCK, 0, 2) !== 0;) {
    if (Date.now() - began > HELD) return false;
    Atomics.wait(nap, 0, 0, 1);
  }
  if (Atomics.load(shared, ENDED) < number) session.post('Runtime.terminateExecution'); // also code that an earlier cell has left
  Atomics.store(shared, LOCK, 0);
  want(0);
  return true;
}

// A connected session would delay the end of the process.
function disconnect() {
  if (session !== undefined) session.disconnect();
  session = undefined;
}

function interruptProcesses() {
  const fs = require('node:fs');
  const parents = new Map();
  for (const name of fs.readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    try {
      const stat = fs.readFileSync(`/proc/${name}/stat`, 'latin1');
      parents.set(Number(name), Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]));
    } catch {} // it has ended
  }
  for (const pid of parents.keys()) {
    let at = pid;
    while (at !== undefined && at !== process.pid && !(compiler !== undefined && at === compiler.pid)) at = parents.get(at);
    if (at !== process.pid || pid === at) continue;
    try {
      process.kill(pid, 'SIGINT');
    } catch {}
  }
}

// TypeScript. The kit is a process that stays, and starts with the session.
let compiler, answers;
let said = '';

function startCompiler() {
  const child = require('node:child_process').spawn(kit, ['typescript-cells'], { stdio: ['pipe', 'pipe', 'ignore'] });
  compiler = child;
  answers = [];
  said = '';
  const lost = () => {
    if (compiler !== child) return;
    compiler = undefined;
    const message = 'the code is nested too deeply, or too large, for the compiler';
    for (const answer of answers) answer({ code: '', text: `error: ${message}\n`, message });
  };
  child.on('error', lost);
  child.on('exit', lost);
  child.stdin.on('error', () => {});
  child.stdout.setEncoding('utf8');
  child.stdout.on('data', (text) => {
    said += text;
    for (let end = said.indexOf('\n'); end >= 0; end = said.indexOf('\n')) {
      const answer = JSON.parse(said.slice(0, end));
      said = said.slice(end + 1);
      answers.shift()(answer);
    }
  });
}

function askCompiler(question) {
  if (compiler === undefined) startCompiler();
  return new Promise((resolve) => {
    answers.push(resolve);
    compiler.stdin.write(JSON.stringify(question) + '\n');
  });
}

// The main thread asks for modules of the program.
port.on('message', async (question) => {
  post({ kind: 'built', ...(await askCompiler(question)) });
});

// Cells. They are rewritten where V8 can not execute them as they are: imports and exports are for modules only, and V8 redeclares a name
// only as what it was. A declaration of the top level therefore becomes that of an earlier cell: of `let`, which const is, too, or of
// `var`, which a function is.
const HELPER = '__sandbox_import';
const kinds = new Map(); // 'let' or 'var', by name
let acorn, walk;

function parse(text) {
  acorn ??= require('internal/deps/acorn/acorn/dist/acorn');
  return acorn.parse(text, {
    ecmaVersion: 'latest', allowImportExportEverywhere: true, allowAwaitOutsideFunction: true, allowHashBang: true,
  });
}

async function prepare(frame) {
  let text = frame.body;
  const source = text;
  if (kit !== undefined) {
    const answer = await askCompiler({ name: `<cell ${frame.id}>`, code: text });
    if (answer.text !== undefined) return { source, refused: answer };
    return { source, code: rewrite(answer.code, true), map: answer.map };
  }
  if (/^\s*\{[^]*\}\s*$/.test(text)) { // an object rather than a block
    try {
      parse(`(${text}\n)`);
      text = `(${text}\n)`;
    } catch {}
  }
  return { source, code: rewrite(text, false) };
}

function rewrite(text, lenient) {
  if (!/\b(const|let|var|class|function|import|export)\b/.test(text)) return text;
  try {
    return new Rewriting(text, lenient).result();
  } catch {
    return text; // V8 reports what is wrong
  }
}

class Rewriting {
  constructor(text, lenient) {
    this.text = text;
    this.lenient = lenient; // imports may name types
    this.edits = []; // [from, to, replacement]
  }

  result() {
    const tree = parse(this.text);
    walk ??= require('internal/deps/acorn/acorn-walk/dist/walk');
    const count = new Map();
    for (const node of tree.body) {
      for (const name of declared(node)) count.set(name, (count.get(name) ?? 0) + 1);
    }
    this.repeated = new Set([...count].filter(([, n]) => n > 1).map(([name]) => name));
    for (const node of tree.body) this.statement(node);
    if (/\bvar\b/.test(this.text)) {
      for (const node of tree.body) nestedVariables(node);
    }
    if (/\bimport\b/.test(this.text)) {
      walk.simple(tree, {
        ImportExpression: (node) => this.edits.push([node.start, node.start + 6, HELPER]),
        MetaProperty: (node) => node.meta.name === 'import' && this.edits.push([node.start, node.end, HELPER]),
      });
    }
    this.edits.sort((a, b) => a[0] - b[0]);
    let made = '', at = 0;
    for (const [from, to, replacement] of this.edits) {
      made += this.text.slice(at, from) + replacement;
      at = to;
    }
    return made + this.text.slice(at);
  }

  // replace keeps the number of lines.
  replace(node, replacement) {
    const lines = this.text.slice(node.start, node.end).split('\n').length - 1;
    this.edits.push([node.start, node.end, replacement + '\n'.repeat(lines)]);
  }

  statement(node) {
    switch (node.type) {
      case 'VariableDeclaration': return this.variables(node);
      case 'ClassDeclaration': return this.named(node, 'class');
      case 'FunctionDeclaration': return this.named(node, 'function');
      case 'ImportDeclaration': return this.imports(node);
      case 'ExportNamedDeclaration':
        if (node.declaration !== null) {
          this.edits.push([node.start, node.declaration.start, '']);
          return this.statement(node.declaration);
        }
        return this.replace(node, node.source === null ? ';' : `await ${HELPER}(${node.source.raw});`);
      case 'ExportAllDeclaration': return this.replace(node, `await ${HELPER}(${node.source.raw});`);
      case 'ExportDefaultDeclaration':
        if (node.declaration.id) {
          this.edits.push([node.start, node.declaration.start, '']);
          return this.statement(node.declaration);
        }
        this.edits.push([node.start, node.declaration.start, ';('], [node.declaration.end, node.declaration.end, ')']);
    }
  }

  variables(node) {
    const names = declared(node);
    const isPlain = node.kind === 'var' && node.declarations.every((one) => one.id.type === 'Identifier');
    if (isPlain && names.every((name) => kinds.get(name) === 'let')) {
      const last = node.declarations.at(-1).end; // var changes what is there already
      this.edits.push([node.start, node.declarations[0].start, 'void ['], [last, last, ']']);
      return;
    }
    const kind = names.some((name) => (kinds.get(name) ?? node.kind) === 'var') ? 'var' : 'let';
    for (const name of names) kinds.set(name, kind);
    if (kind !== node.kind) this.edits.push([node.start, node.start + node.kind.length, kind.padEnd(node.kind.length)]);
  }

  named(node, kind) {
    const name = node.id.name, natural = kind === 'class' ? 'let' : 'var';
    const wanted = kinds.get(name) ?? natural;
    kinds.set(name, wanted);
    if (wanted !== natural && !this.repeated.has(name)) {
      this.edits.push([node.start, node.start, `${wanted} ${name} = `], [node.end, node.end, ';']);
    }
  }

  imports(node) {
    const source = node.source.raw;
    const names = [];
    let whole;
    for (const one of node.specifiers) {
      const local = one.local.name;
      if (one.type === 'ImportNamespaceSpecifier') whole = local;
      else names.push([one.type === 'ImportDefaultSpecifier' ? '"default"' : one.imported.raw ?? JSON.stringify(one.imported.name), local]);
    }
    const kind = node.specifiers.some((one) => kinds.get(one.local.name) === 'var') ? 'var' : 'let';
    for (const one of node.specifiers) kinds.set(one.local.name, kind);
    const attributes = (node.attributes ?? []).map((a) => `${a.key.raw ?? a.key.name}: ${a.value.raw}`);
    const options = attributes.length > 0 ? `{ with: { ${attributes.join(', ')} } }` : 'undefined';
    const wanted = this.lenient ? '' : names.map(([name]) => name).join(', ');
    const call = `await ${HELPER}(${source}, ${options}, [${wanted}])`;
    const parts = [];
    if (names.length > 0) parts.push(`{ ${names.map(([name, local]) => `${name}: ${local}`).join(', ')} } = ${call}`);
    if (whole !== undefined) parts.push(`${whole} = ${call}`);
    this.replace(node, (parts.length > 0 ? `${kind} ${parts.join(', ')}` : call) + ';');
  }
}

// declared returns the names that a statement of the top level declares.
function declared(node) {
  if (node.type === 'ExportNamedDeclaration' && node.declaration !== null) return declared(node.declaration);
  if (node.type === 'FunctionDeclaration' || node.type === 'ClassDeclaration') return [node.id.name];
  if (node.type !== 'VariableDeclaration') return [];
  return node.declarations.flatMap((one) => namesOf(one.id));
}

function namesOf(pattern) {
  switch (pattern?.type) {
    case 'Identifier': return [pattern.name];
    case 'ObjectPattern': return pattern.properties.flatMap((p) => namesOf(p.type === 'RestElement' ? p.argument : p.value));
    case 'ArrayPattern': return pattern.elements.flatMap(namesOf);
    case 'AssignmentPattern': return namesOf(pattern.left);
    case 'RestElement': return namesOf(pattern.argument);
  }
  return [];
}

// nestedVariables notes variables that are declared in blocks, and belong to the top level.
function nestedVariables(statement) {
  walk.recursive(statement, null, {
    Function() {},
    Class() {},
    VariableDeclaration(node) {
      if (node.kind !== 'var' || node === statement) return;
      for (const name of node.declarations.flatMap((one) => namesOf(one.id))) {
        if (!kinds.has(name)) kinds.set(name, 'var');
      }
    },
  });
}

// Questions about text.
async function check(text) {
  if (kit !== undefined) {
    const answer = await askCompiler({ name: '<check>', code: text });
    return answer.text === undefined ? 'complete' : answer.incomplete ? 'incomplete' : 'invalid';
  }
  try {
    parse(text);
    return 'complete';
  } catch (e) {
    const unfinished = /^Unterminated (template|comment)/.test(e.message) ||
      (/^Unterminated string/.test(e.message) && text.endsWith('\\\n'));
    if (!unfinished && !(e.pos >= text.trimEnd().length)) return /^\s*\{[^]*\}\s*$/.test(text) && isObject(text) ? 'complete' : 'invalid';
    return 'incomplete';
  }
}

function isObject(text) {
  try {
    parse(`(${text}\n)`);
    return true;
  } catch {
    return false;
  }
}

if (kit !== undefined) startCompiler();
parse('1');
