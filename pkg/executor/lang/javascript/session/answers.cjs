// The part of the driver of a JavaScript session that not every session needs: answers to questions other than cells. Foreign code is not
// called: getters and proxies are not evaluated.
'use strict';
const { builtinModules, createRequire } = require('node:module');
const { inspect, types } = require('node:util');
const path = require('node:path');
const fs = require('node:fs');

const LIMIT_NAMES = 1000, LIMIT_VALUE = 200, LIMIT_INSPECTED = 64 << 10;
const KEYWORDS = ('async await break case catch class const continue debugger default delete do else export extends false finally for ' +
  'function if import in instanceof let new null return static super switch this throw true try typeof undefined ' +
  'var void while with yield').split(' ');

module.exports = function ({ post, valueOf, initial, global, builtins: { Buffer, Function, Object, RegExp, Set, String } }) {
  // evaluate returns what the inspector says of a value; undefined if only foreign code can tell.
  function evaluate(expression) {
    const answer = post('Runtime.evaluate', { expression, throwOnSideEffect: true, silent: true, objectGroup: 'question' });
    return answer === undefined || answer.exceptionDetails !== undefined ? undefined : answer.result;
  }

  function names() {
    const lexical = post('Runtime.globalLexicalScopeNames', {})?.names ?? [];
    const own = Object.getOwnPropertyNames(global).filter((name) => !initial.has(name) || isReplaced(name));
    return [...new Set([...lexical, ...own])].filter((name) => isIdentifier(name) && !name.startsWith('__sandbox_'));
  }

  // isReplaced reports whether a cell has set a global variable that is a module of Node.
  function isReplaced(name) {
    return builtinModules.includes(name) && Object.getOwnPropertyDescriptor(global, name)?.enumerable === true;
  }

  const isIdentifier = (name) => /^[\p{ID_Start}$_][\p{ID_Continue}$\u200c\u200d]*$/u.test(name);

  function variables() {
    const all = names().filter((name) => !/^_+$/.test(name)).sort();
    const shown = [];
    for (const name of all.slice(0, LIMIT_NAMES)) {
      const remote = evaluate(name);
      if (remote === undefined) continue; // not initialised
      shown.push({ name: clip(name, LIMIT_VALUE), type: typeOf(remote), value: short(valueOf(remote)) });
    }
    return { variables: shown, truncated: all.length > LIMIT_NAMES };
  }

  function typeOf(remote) {
    return clip(remote.subtype === 'null' ? 'null' : remote.className ?? remote.type, LIMIT_VALUE);
  }

  function short(value) {
    const text = typeof value === 'function' ? nameOf(value) : inspect(value, {
      depth: 1, maxArrayLength: 20, maxStringLength: LIMIT_VALUE, breakLength: Infinity, customInspect: false, showProxy: true,
    });
    return text.length > LIMIT_VALUE ? text.slice(0, LIMIT_VALUE - 3) + '...' : text;
  }

  function nameOf(value) {
    const name = types.isProxy(value) ? undefined : Object.getOwnPropertyDescriptor(value, 'name')?.value;
    const kind = types.isProxy(value) ? 'Proxy' : /^class\b/.test(Function.prototype.toString.call(value)) ? 'class' : 'Function';
    return `[${kind}: ${typeof name === 'string' && name !== '' ? name : '(anonymous)'}]`;
  }

  function clip(text, limit) {
    return text.length > limit ? text.slice(0, limit) : text;
  }

  const CHAIN = String.raw`[\p{ID_Start}$_][\p{ID_Continue}$]*(?:\??\.[\p{ID_Start}$_#][\p{ID_Continue}$]*|\[\d+\])*`;

  function complete(text, cursor) {
    const bytes = Buffer.from(text);
    const before = bytes.toString('utf8', 0, cursor);
    const [word, matches] = candidates(before);
    const end = Buffer.byteLength(before);
    const found = [...new Set(matches)].filter((name) => name.startsWith(word) && name.length <= LIMIT_VALUE);
    found.sort((a, b) => a.startsWith('_') - b.startsWith('_') || (a < b ? -1 : 1));
    return { matches: found.slice(0, LIMIT_NAMES), start: end - Buffer.byteLength(word), end };
  }

  // candidates returns the word before the cursor, and what it may become.
  function candidates(before) {
    const module = /(?:\brequire\s*\(|\bfrom|\bimport|\bimport\s*\()\s*["']([^"'\n]*)$/.exec(before);
    if (module !== null) return [module[1], modules(module[1])];
    const member = new RegExp(`(?:^|[^\\p{ID_Continue}$.\\])])(${CHAIN})\\??\\.([\\p{ID_Continue}$]*)$`, 'u').exec(before);
    if (member !== null) {
      const remote = evaluate(member[1].replaceAll('?.', '.'));
      return [member[2], remote === undefined ? [] : propertiesOf(valueOf(remote), member[2])];
    }
    const word = /[\p{ID_Continue}$]*$/u.exec(before)[0];
    if (/^\d/.test(word) || before.slice(0, before.length - word.length).endsWith('.')) return [word, []];
    const known = Object.getOwnPropertyNames(global).filter((name) => isIdentifier(name) && !name.startsWith('__sandbox_'));
    return [word, [...names(), ...known, ...KEYWORDS]];
  }

  function propertiesOf(value, word) {
    if (value === null || value === undefined) return [];
    const found = [];
    for (let at = Object(value); at !== null && !types.isProxy(at) && found.length < 10 * LIMIT_NAMES; at = Object.getPrototypeOf(at)) {
      if (at === Object.prototype && word === '' && found.length > 0) break; // known to everybody
      if (types.isTypedArray(at) || typeof at === 'string') continue;
      found.push(...Object.getOwnPropertyNames(at).filter(isIdentifier));
    }
    return found;
  }

  function modules(word) {
    if (word.startsWith('.')) {
      const dir = path.resolve(word.endsWith('/') ? word : path.dirname(word));
      const prefix = word.slice(0, word.lastIndexOf('/') + 1) || './';
      return entries(dir).map((e) => prefix + e.name + (e.isDirectory() ? '/' : ''));
    }
    const found = builtinModules.filter((name) => !name.startsWith('_')).flatMap((name) => [name, `node:${name}`]);
    for (const dir of createRequire(path.resolve('<cell>')).resolve.paths('x')) {
      found.push(...entries(dir).filter((e) => !e.name.startsWith('.') && !e.name.startsWith('@')).map((e) => e.name));
    }
    return found;
  }

  function entries(dir) {
    try {
      return fs.readdirSync(dir, { withFileTypes: true });
    } catch {
      return [];
    }
  }

  function describe(text) {
    const found = new RegExp(`^\\s*\\?*(${CHAIN})`, 'u').exec(text);
    const remote = found === null ? undefined : evaluate(found[1].replaceAll('?.', '.'));
    if (remote === undefined) return { found: false };
    const value = valueOf(remote);
    const lines = [`Type:   ${typeOf(remote)}`, `Value:  ${typeof value === 'function' ? nameOf(value) : inspect(value, {
      depth: 2, maxStringLength: 10000, customInspect: false, showProxy: true,
    })}`];
    if (typeof value === 'function') {
      const source = Function.prototype.toString.call(value).split('\n');
      const shown = source.length > 40 ? [...source.slice(0, 40), '...'] : source;
      if (!/\[native code\]\s*\}$/.test(source.at(-1))) lines.push('', 'Source:', ...shown);
    }
    return { found: true, text: clip(lines.join('\n'), LIMIT_INSPECTED) };
  }

  return {
    answer(message) {
      try {
        switch (message.kind) {
          case 'complete': return complete(message.body, message.argument);
          case 'inspect': return describe(message.body);
          case 'variables': return variables();
        }
      } finally {
        post('Runtime.releaseObjectGroup', { objectGroup: 'question' });
      }
    },

    checked({ body, status }) {
      if (status !== 'incomplete') return { status };
      const line = body.split('\n').findLast((l) => l.trim() !== '') ?? '';
      const indent = /^\s*/.exec(line)[0] + (/[{([]\s*$/.test(line) ? '  ' : '');
      return { status, indent };
    },

    empty(kind) {
      return { complete: { matches: [], start: 0, end: 0 }, inspect: { found: false }, variables: { variables: [] } }[kind] ?? {};
    },
  };
};
