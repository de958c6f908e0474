// A reporter of Vitest: each test is a line of JSON on descriptor 3. It has the methods of versions before 3, and of later ones.
import fs from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const most = 64 << 10;

// Vitest does not tell tests that a filter leaves out from test.skip.
const asked = JSON.parse(fs.readFileSync(path.join(path.dirname(fileURLToPath(import.meta.url)), 'tests.json'), 'utf8'));
const filtered = asked.filter !== '' || asked.names?.length > 0;

function send(type, fields) {
  const line = Buffer.from(JSON.stringify({ type, ...fields }) + '\n');
  for (let at = 0; at < line.length;) at += fs.writeSync(3, line, at);
}

function explain(errors) {
  const text = (errors ?? []).map((e) => String(e.stack || e.stackStr || e.message || e)).join('\n').replace(/\x1b\[[0-9;]*m/g, '');
  return text.length > most ? text.slice(0, most / 2) + '\n…\n' + text.slice(-most / 2) : text;
}

const statuses = { pass: 'passed', passed: 'passed', fail: 'failed', failed: 'failed' };

export default class {
  started = new Set();
  ended = new Set();

  onInit(context) {
    this.context = context;
  }

  place(task) {
    const names = [];
    for (let t = task; t && t.type !== 'module' && t !== task.file; t = t.suite ?? t.parent) {
      if (t.name) names.unshift(t.name);
    }
    const file = path.relative(process.cwd(), task.file?.filepath ?? task.module?.moduleId ?? '');
    return { id: [file, ...names].join(' > '), name: names.join(' > '), file, line: task.location?.line ?? 0 };
  }

  start(task) {
    const at = this.place(task);
    if (this.started.has(at.id) || this.ended.has(at.id)) return;
    this.started.add(at.id);
    send('start', at);
  }

  end(task, state, errors, duration) {
    if (filtered && !statuses[state]) {
      send('drop', { id: this.place(task).id });
      return;
    }
    const at = this.place(task);
    if (this.ended.has(at.id)) return;
    this.ended.add(at.id);
    const message = explain(errors);
    const late = /^Error: (Test|Hook) timed out in/.test(message);
    send('end', { ...at, status: late ? 'timeout' : statuses[state] ?? 'skipped', duration: (duration ?? 0) / 1000, message });
  }

  onTaskUpdate(packs) {
    for (const [id, result] of packs) {
      const task = this.context?.state?.idMap?.get(id);
      if (task?.type !== 'test' && task?.type !== 'custom') continue;
      if (result?.state === 'run') this.start(task);
      else if (statuses[result?.state]) this.end(task, result.state, result.errors, result.duration);
    }
  }

  walk(task) {
    if (task.type === 'test' || task.type === 'custom') {
      const { result, mode } = task;
      if (result?.state || mode === 'skip' || mode === 'todo') this.end(task, result?.state, result?.errors, result?.duration);
    }
    for (const t of task.tasks ?? []) this.walk(t);
  }

  onFinished(files, errors) {
    for (const f of files ?? []) {
      this.walk(f);
      if (f.result?.state === 'fail' && f.result.errors?.length) this.broken(f.filepath, f.result.errors);
    }
    this.finish(errors);
  }

  broken(file, errors) {
    const name = path.relative(process.cwd(), file);
    if (this.ended.has(name)) return;
    this.ended.add(name);
    send('end', { id: name, name, file: name, status: 'error', message: explain(errors) });
  }

  onTestCaseReady(test) {
    this.start(test);
  }

  onTestCaseResult(test) {
    const { state, errors } = test.result();
    this.end(test, state, errors, test.diagnostic()?.duration);
  }

  onTestRunEnd(modules, errors) {
    for (const m of modules ?? []) {
      const own = m.errors?.() ?? [];
      if (own.length) this.broken(m.moduleId, own);
    }
    this.finish(errors);
  }

  finish(errors) {
    if (this.done) return;
    this.done = true;
    if (errors?.length) send('end', { id: 'unhandled errors', name: 'unhandled errors', status: 'error', message: explain(errors) });
    send('done', {});
  }
}
