// A reporter of Node's test runner: each test is a line of JSON on descriptor 3.
import fs from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const exits = path.join(path.dirname(fileURLToPath(import.meta.url)), 'exits');
const most = 64 << 10;

function send(type, fields) {
  const line = Buffer.from(JSON.stringify({ type, ...fields }) + '\n');
  for (let at = 0; at < line.length;) at += fs.writeSync(3, line, at);
}

function explain(error) {
  const cause = error?.cause;
  const text = String(cause?.stack ?? cause ?? error?.stack ?? error?.message ?? '');
  return text.length > most ? text.slice(0, most / 2) + '\n…\n' + text.slice(-most / 2) : text;
}

const relative = (file) => (file ? path.relative(process.cwd(), file) : '');

// Files whose process has called process.exit while the runner waited for tests: exit.cjs lists them.
function exited(file) {
  try {
    return fs.readFileSync(exits, 'utf8').split('\n').includes(file);
  } catch {
    return false;
  }
}

export default async function* (source) {
  const running = new Map(); // from the place of a test to the ids of those that run there
  const above = new Map(); // from a file to the names of its tests that contain the current one
  const failed = new Map(); // from a file to the number of its failed tests
  const key = (d) => JSON.stringify([d.file, d.line, d.column, d.nesting, d.name]);
  let completes = false; // newer versions report a test at its end, and again in the order of the files
  for await (const { type, data } of source) {
    const file = relative(data.file);
    const isFile = data.nesting === 0 && data.file !== undefined && (data.name === data.file || path.resolve(data.name ?? '') === data.file);
    if (type === 'test:stdout' || type === 'test:stderr') {
      fs.writeSync(2, data.message);
      continue;
    }
    if (type === 'test:dequeue' && !isFile) {
      const names = (above.get(file) ?? []).slice(0, data.nesting);
      names.push(data.name);
      above.set(file, names);
      const id = [file, ...names].join(' > ');
      running.set(key(data), [...(running.get(key(data)) ?? []), id]);
      send('start', { id, name: names.join(' > '), file, line: data.line });
      continue;
    }
    completes ||= type === 'test:complete';
    if (completes ? type !== 'test:complete' : type !== 'test:pass' && type !== 'test:fail') continue;
    const error = data.details?.error;
    const passes = completes ? !error : type === 'test:pass';
    if (isFile) {
      if (exited(data.file)) {
        send('end', { id: file, name: file, file, status: 'error', message: 'process.exit() was called while tests were running' });
      } else if (!passes && !failed.get(file)) {
        send('end', { id: file, name: file, file, status: 'error', message: explain(error) || 'the process of the file failed' });
      } else if (passes && !above.has(file)) {
        send('end', { id: file, name: file, file, status: 'passed', duration: (data.details?.duration_ms ?? 0) / 1000 });
      }
      continue;
    }
    const ids = running.get(key(data)) ?? [];
    const id = ids.shift() ?? [file, data.name].join(' > ');
    const end = { id, name: id.slice(file.length + 3), file, line: data.line, duration: (data.details?.duration_ms ?? 0) / 1000 };
    const suite = data.details?.type === 'suite';
    if (data.skip === 'test name does not match pattern' || (suite && (passes || error?.failureType === 'subtestsFailed'))) {
      send('drop', { id });
    } else if (data.skip !== undefined) {
      send('end', { ...end, status: 'skipped', message: data.skip === true ? '' : String(data.skip) });
    } else if (data.todo !== undefined && !passes) {
      send('end', { ...end, status: 'skipped', message: 'todo: ' + explain(error) });
    } else if (passes) {
      send('end', { ...end, status: 'passed' });
    } else {
      failed.set(file, (failed.get(file) ?? 0) + 1);
      send('end', { ...end, status: error?.failureType === 'testTimeoutFailure' ? 'timeout' : 'failed', message: explain(error) });
    }
  }
  send('done', {});
}
