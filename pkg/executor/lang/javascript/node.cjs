// Has Node wait for its program. It is loaded by NODE_OPTIONS=--require, before the main module is looked for, says that it is ready, reads one
// message, undoes whatever shows that it was here, and returns: Node then runs the program by itself, as it was started to.
//
//   pool → length (4 bytes, big endian), {"args": […], "env": {…}, "dir": "…"}
//
// Threads of the program inherit --require whatever becomes of the environment. In them there is nothing to wait for.
'use strict';
(function () {
  const name = __filename;
  const main = process.env.NODE_OPTIONS === '--require ' + name;

  // The program must not find the driver among the modules.
  const forget = function () {
    delete require.cache[name];
    const Module = module.constructor;
    for (const key of Object.keys(Module._pathCache || {})) {
      if (Module._pathCache[key] === name) delete Module._pathCache[key];
    }
    try {
      process._preload_modules.length = 0;
    } catch {}
  };
  // Clocks that count from the start of the process: for the program that is the message.
  const clocks = function () {
    const trap = function (of, key, get, apply) {
      const d = Object.getOwnPropertyDescriptor(of, key);
      const part = get ? 'get' : 'value';
      d[part] = new Proxy(d[part], { apply });
      Object.defineProperty(of, key, d);
    };
    const { performance } = require('perf_hooks');
    const proto = Object.getPrototypeOf(performance);
    const up = process.uptime, now = performance.now.bind(performance);
    let upBefore = 0, before = 0;
    trap(process, 'uptime', false, (f, self, args) => Reflect.apply(f, self, args) - upBefore);
    if (Object.prototype.hasOwnProperty.call(proto, 'now') && Object.prototype.hasOwnProperty.call(proto, 'timeOrigin')) {
      trap(proto, 'now', false, (f, self, args) => Reflect.apply(f, self, args) - before);
      trap(proto, 'timeOrigin', true, (f, self, args) => Reflect.apply(f, self, args) + before);
      // Marks and measures are to be on the same clock.
      trap(proto, 'mark', false, (f, self, args) => {
        if (args.length === 1) args = [args[0], { startTime: now() - before }];
        else if (args.length > 1 && args[1] !== null && typeof args[1] === 'object' && args[1].startTime === undefined) {
          args = [args[0], { ...args[1], startTime: now() - before }];
        }
        return Reflect.apply(f, self, args);
      });
      trap(proto, 'measure', false, (f, self, args) => {
        const [title, start, end] = args;
        if (args.length === 1) args = [title, { end: now() - before }];
        else if (typeof start === 'string' && end === undefined) args = [title, start, now() - before];
        else if (start !== null && typeof start === 'object' && start.end === undefined && start.duration === undefined && end === undefined) {
          args = [title, { ...start, end: now() - before }];
        }
        return Reflect.apply(f, self, args);
      });
    }
    const untilNow = now(), untilUp = up();
    return function (wait) { // as if it had been started just now, and had taken no longer than it did
      before = wait ? wait[0] : now() - untilNow;
      upBefore = wait ? wait[1] : up() - untilUp;
      return [before, upBefore];
    };
  };
  // How long the process has waited; its threads count from the same moment.
  const waited = 'sandbox-run: waited';
  if (!main) {
    try {
      const wait = require('worker_threads').getEnvironmentData(waited);
      if (wait) clocks()(wait);
    } catch {}
    return forget();
  }

  const fs = require('fs');

  // What almost every program needs in its first milliseconds: a console behind pipes.
  for (const m of ['net', 'stream', 'tty', 'util', 'url', 'path', 'events', 'timers', 'vm']) require(m);

  // Loaded is not compiled: functions are when they are called for the first time, because the heap's limit, a flag, is one that Node's own
  // compiled code was not made with. Nothing here needs more than ticks and promises, which are kept here and now, so that none is left over
  // for the program.
  if (typeof process._tickCallback === 'function') {
    const sink = new (require('stream').Writable)({ decodeStrings: false, write(text, encoding, done) { done(); } });
    const console = new (require('console').Console)({ stdout: sink, stderr: sink, colorMode: false }); // else it opens the standard error
    console.log('%s', 1);
    console.log({ a: [1] });
    // The standard output is a socket; this one has nothing behind it.
    const done = () => 0;
    const handle = { readStart: done, readStop: done, setBlocking: done, getAsyncId: done, close: done, writeLatin1String: done, writeUtf8String: done };
    new (require('net').Socket)({ handle, readable: false, writable: true }).write('1\n');
    if (/\.mjs$/.test(process.argv[1])) { // a module, with a map of its sources; its file will be read by promises
      require('fs/promises');
      const map = Buffer.from('{"version":3,"sources":["a"],"names":[],"mappings":"AAAA"}').toString('base64');
      import('data:text/javascript,0%0A//%23 sourceMappingURL=data:application/json;base64,' + map).catch(function () {});
    }
    process._tickCallback();
  }

  // The environment as the kernel shows it: where it is, and how to write there.
  let block;
  try {
    const stat = fs.readFileSync('/proc/self/stat', 'latin1');
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    const from = Number(fields[47]), to = Number(fields[48]); // env_start, env_end: 50 and 51 of proc(5)
    if (Number.isSafeInteger(from) && Number.isSafeInteger(to) && from > 0 && to > from) block = { from, size: to - from };
  } catch {}

  const read = function (size) {
    const b = Buffer.allocUnsafeSlow(size);
    for (let at = 0; at < size;) {
      const n = fs.readSync(0, b, at, size - at, null);
      if (n === 0) process.exit(1); // the pool has closed the pipe
      at += n;
    }
    return b;
  };

  let reset = function () {};
  try {
    const set = clocks(), threads = require('worker_threads');
    reset = function () { threads.setEnvironmentData(waited, set()); };
  } catch {}

  fs.writeSync(2, 'sandbox-run: node waits\n');
  const request = JSON.parse(read(read(4).readUInt32BE(0)).toString('utf8'));

  // The environment, in the order of a cold start. All of it is set anew, so that the C library has copies and the block is free.
  for (const key of Object.keys(process.env)) delete process.env[key];
  const lines = Object.keys(request.env).map((key) => Buffer.from(key + '=' + request.env[key]));
  lines.sort(Buffer.compare);
  for (const line of lines) {
    const at = line.indexOf('=');
    process.env[line.toString('utf8', 0, at)] = line.toString('utf8', at + 1);
  }
  if (block) {
    try {
      const text = Buffer.alloc(block.size);
      let at = 0;
      for (const line of lines) {
        if (at + line.length + 1 > block.size) break;
        at += line.copy(text, at) + 1;
      }
      const mem = fs.openSync('/proc/self/mem', 'r+');
      try {
        fs.writeSync(mem, text, 0, text.length, block.from);
      } finally {
        fs.closeSync(mem);
      }
    } catch {}
  }

  // The program's arguments come after Node's own and the program.
  const args = request.args;
  for (let i = 1 + process.execArgv.length + process.argv.length - 1; i < args.length; i++) process.argv.push(args[i]);
  if (process.cwd() !== request.dir) process.chdir(request.dir);
  forget();
  reset();
})();
