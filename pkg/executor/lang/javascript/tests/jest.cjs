// A reporter of Jest: each test is a line of JSON on descriptor 3.
const fs = require('node:fs');
const path = require('node:path');

const most = 64 << 10;

// Jest does not tell tests that a filter leaves out from test.skip.
const asked = JSON.parse(fs.readFileSync(path.join(__dirname, 'tests.json'), 'utf8'));
const filtered = asked.filter !== '' || asked.names?.length > 0;

function send(type, fields) {
  const line = Buffer.from(JSON.stringify({ type, ...fields }) + '\n');
  for (let at = 0; at < line.length;) at += fs.writeSync(3, line, at);
}

function cut(text) {
  const plain = String(text ?? '').replace(/\x1b\[[0-9;]*m/g, '');
  return plain.length > most ? plain.slice(0, most / 2) + '\n…\n' + plain.slice(-most / 2) : plain;
}

const statuses = { passed: 'passed', failed: 'failed', pending: 'skipped', skipped: 'skipped', todo: 'skipped', disabled: 'skipped' };

module.exports = class {
  constructor() {
    this.ended = new Map(); // from a file to the ids of its tests that have ended
  }

  place(test, result) {
    const file = path.relative(process.cwd(), test.path);
    const names = [...(result.ancestorTitles ?? []), result.title];
    return { id: [file, ...names].join(' > '), name: names.join(' > '), file, line: result.location?.line ?? 0 };
  }

  onTestCaseStart(test, result) {
    send('start', this.place(test, result));
  }

  onTestCaseResult(test, result) {
    const at = this.place(test, result);
    if (filtered && result.status === 'pending') {
      send('drop', { id: at.id });
      return;
    }
    const ids = this.ended.get(at.file) ?? new Set();
    this.ended.set(at.file, ids.add(at.id));
    const message = cut((result.failureMessages ?? []).join('\n'));
    const late = message.includes('Exceeded timeout of');
    send('end', { ...at, status: late ? 'timeout' : statuses[result.status] ?? 'error', duration: (result.duration ?? 0) / 1000, message });
  }

  onTestResult(test, results) {
    for (const result of results.testResults ?? []) {
      const at = this.place(test, result);
      if (!this.ended.get(at.file)?.has(at.id) && !(filtered && result.status === 'pending')) this.onTestCaseResult(test, result);
    }
    const file = path.relative(process.cwd(), test.path);
    for (const { message } of results.console ?? []) fs.writeSync(2, message + '\n');
    if (results.testExecError || (results.failureMessage && !results.testResults?.some((r) => r.status === 'failed'))) {
      send('end', { id: file, name: file, file, status: 'error', message: cut(results.failureMessage ?? results.testExecError?.message) });
    }
  }

  onRunComplete() {
    send('done', {});
  }
};
